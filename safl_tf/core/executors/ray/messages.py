"""What travels between the driver and its workers."""

import contextlib
import copy
import pathlib
import sys
import sysconfig
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from ray import cloudpickle

from safl_tf.data import client_data
from safl_tf.util import errors, installed

_STANDARD = tuple(sysconfig.get_path(name) for name in ('stdlib', 'platstdlib'))


class KerasSettings(NamedTuple):
  """The global settings of Keras, which models are built with."""

  floatx: str
  epsilon: float
  image_data_format: str
  policy: Any

  @classmethod
  def current(cls) -> 'KerasSettings':
    """Returns those of this process."""
    return cls(
      keras.config.floatx(),
      keras.config.epsilon(),
      keras.config.image_data_format(),
      keras.dtype_policies.serialize(keras.config.dtype_policy()),
    )

  def apply(self) -> None:
    """Makes them those of this process."""
    keras.config.set_floatx(self.floatx)
    keras.config.set_epsilon(self.epsilon)
    keras.config.set_image_data_format(self.image_data_format)
    policy = keras.dtype_policies.deserialize(self.policy)
    keras.config.set_dtype_policy(policy)


class Run(NamedTuple):
  """What the models of a run share, besides the arrays of its data.

  Attributes:
    clients: without their arrays.
    algorithm: the rules, pickled.
    config: how a client trains, pickled.
    executor: 'threads' or 'vectorized'.
    jit_compile: see `client_trainer.ClientTrainer`.
    device: 'cpu' or 'gpu'.
    stack: see `client_trainer.ClientTrainer`.
    steps: of fine-tuning, see `ClientTrainer.personalizer`; None for rounds.
    keras: the driver's settings.
  """

  clients: client_data.ClientData
  algorithm: bytes
  config: bytes
  executor: str
  jit_compile: str
  device: str
  stack: int | None
  steps: int | None
  keras: KerasSettings


class Model(NamedTuple):
  """A model: `flat_model.Portable` and `task.Options`, both pickled."""

  portable: bytes
  task: bytes


class Chunk(NamedTuple):
  """The clients of a message.

  Attributes:
    seed: of the run.
    t: the round.
    ids: the clients.
    kept: what they keep and their round reads, stacked by name.
    received: what each receives, stacked by name.
    shared: what all receive: name -> array, for a worker a reference in a list.
  """

  seed: int
  t: int
  ids: Sequence[int]
  kept: Mapping[str, np.ndarray]
  received: Mapping[str, np.ndarray]
  shared: Mapping[str, Any]


class Failure(NamedTuple):
  """An error on a worker.

  Attributes:
    error: pickled; None if that is not possible.
    summary: its type and message.
    trace: its traceback.
  """

  error: bytes | None
  summary: str
  trace: str

  @classmethod
  def of(cls, error: Exception, trace: str) -> 'Failure':
    """Returns the failure of an exception."""
    pickled = None
    with contextlib.suppress(Exception):
      pickled = cloudpickle.dumps(error)
      cloudpickle.loads(pickled)
    return cls(pickled, f'{type(error).__name__}: {error}', trace)

  def exception(self, place: str) -> Exception:
    """Returns the exception, with a note of where it was raised."""
    error: Exception = RuntimeError(self.summary)
    if self.error is not None:
      with contextlib.suppress(Exception):  # a class that is only there
        error = cloudpickle.loads(self.error)
    error.add_note(f'on {place}:\n{self.trace}')
    return error


def pack(argument: str, name: str, value: Any, hint: str) -> bytes:
  """Pickles an argument of the user for other machines.

  Code that is not installed, such as the user's script and the modules beside
  it, travels by value.

  Args:
    argument: the argument's name, for the error.
    name: the value's name, for the error.
    value: what to pickle.
    hint: what to do if that is not possible.
  """
  try:
    with _by_value():
      return cloudpickle.dumps(value)
  except Exception as error:
    hint = f'cannot be sent to Ray workers ({errors.reason(error)}); {hint}'
    raise errors.InputError(argument, name, hint) from error


def unpack(argument: str, pickled: bytes) -> Any:
  """Unpickles an argument on a worker."""
  try:
    return cloudpickle.loads(pickled)
  except Exception as error:
    hint = (
      f'cannot be loaded on a Ray worker ({errors.reason(error)}); install '
      'what it imports on all nodes'
    )
    raise errors.InputError(argument, 'given', hint) from error


@contextlib.contextmanager
def _by_value() -> Iterator[None]:
  """Lets modules that are not installed be pickled by value."""
  own = str(pathlib.Path(__file__).parents[3])
  modules = [
    module
    for name, module in sys.modules.copy().items()  # others import
    if _is_users(module, own) and not name.startswith(('binaries', '__main__'))
  ]
  for module in modules:
    cloudpickle.register_pickle_by_value(module)
  try:
    yield
  finally:
    for module in modules:
      cloudpickle.unregister_pickle_by_value(module)


def _is_users(module: Any, own: str) -> bool:
  path = getattr(module, '__file__', None)
  if not isinstance(module, types.ModuleType) or not isinstance(path, str):
    return False
  if not path.endswith('.py') or path.startswith((*_STANDARD, own)):
    return False
  return not installed.is_installed(path)


def split_data(
  clients: client_data.ClientData,
) -> tuple[client_data.ClientData, list[np.ndarray]]:
  """Returns clients without their arrays, and the arrays."""
  bare = copy.copy(clients)
  bare.x = tf.nest.map_structure(lambda leaf: None, clients.x)
  bare.y = None  # type: ignore[assignment]
  bare.sample_weight = None
  arrays = [*tf.nest.flatten(clients.x), clients.y]
  if clients.sample_weight is not None:
    arrays.append(clients.sample_weight)
  return bare, arrays


def join_data(
  bare: client_data.ClientData, leaves: list[Any]
) -> client_data.ClientData:
  """Puts the arrays of `split_data` back."""
  clients = copy.copy(bare)
  count = len(tf.nest.flatten(bare.x))
  clients.x = tf.nest.pack_sequence_as(bare.x, leaves[:count])
  clients.y, clients.sample_weight = (*leaves[count:], None)[:2]
  return clients
