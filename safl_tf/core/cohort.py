"""The inputs and outputs of a round's clients.

An executor yields outputs in the order of S_t, whatever the order in which
clients finish; a few of them wait for an earlier one. Each array is put into a
store at once, and read back, one at a time, when the aggregator asks for it.
So sums are taken in one order, and with memory-mapped stores a round needs
memory for a few models, however many clients it has.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from safl_tf.core import algorithm as algorithm_lib
from safl_tf.core import batching, client_store
from safl_tf.data import client_data

# client -> what it keeps, and what it receives
ClientArrays = Callable[
  [int], tuple[algorithm_lib.Arrays, algorithm_lib.Arrays]
]
# name of arrays -> where to store them
Stores = Callable[[str], client_store.ClientStore]


class ClientInput(NamedTuple):
  """The inputs of a client's round.

  Attributes:
    received: the server's arrays by name; 'z' is the global model [P], or any
      values if there is none yet.
    has_global: whether there is a global model.
    kept: the client's own arrays by name; 'z' is its model [P].
    seeds: for mix, gate and the model's seed generators, int32 [3, 2].
    clock: the t that `mix` and `gate` receive.
    plan: the batches to train on.
    measured: the batches to measure models on; none if no rule needs them.
    iteration: the initial value of the optimizer's step counter.
  """

  received: dict[str, np.ndarray]
  has_global: bool
  kept: dict[str, np.ndarray]
  seeds: np.ndarray
  clock: float
  plan: batching.BatchPlan
  measured: batching.BatchPlan
  iteration: np.int64 = np.int64(0)


@dataclasses.dataclass(frozen=True)
class CohortInput:
  """The inputs of a round's clients, as a function: client -> ClientInput.

  Attributes:
    seed: of the run.
    t: the round.
    arrays: client -> what it keeps and what it receives; without 'z' if there
      is no global model.
    make: (seed, t, client, kept, received) -> the client's input.
  """

  seed: int
  t: int
  arrays: ClientArrays
  make: Callable[..., ClientInput]

  def __call__(self, k: int) -> ClientInput:
    """Returns the input of client k."""
    return self.make(self.seed, self.t, k, *self.arrays(k))


def without_steps(inputs: ClientInput) -> ClientInput:
  """Returns the input of a client that does nothing, to fill a place."""
  none = np.int32(0)
  return inputs._replace(
    plan=inputs.plan._replace(num_steps=none),
    measured=inputs.measured._replace(num_steps=none),
  )


class ClientOutput(NamedTuple):
  """The results of a client's round.

  Attributes:
    kept: the arrays that the client keeps, by name; 'z' is its model [P].
    upload: the arrays that it uploads; those that it also keeps are left out,
      see `ClientUpdate.shared`.
    finite: whether all elements of both are finite.
    sent: whether the client uploads.
    q: the upload probability.
    delta: Δ, the gap between the global and the client's own accuracy.
    p: the probability that an element was kept local.
    kept_local: the share of elements that were kept local.
    train_loss: the mean training loss over the round's examples.
    metrics: the metrics by name that rules need or the client work returns.
  """

  kept: dict[str, tf.Tensor]
  upload: dict[str, tf.Tensor]
  finite: tf.Tensor
  sent: tf.Tensor
  q: tf.Tensor
  delta: tf.Tensor
  p: tf.Tensor
  kept_local: tf.Tensor
  train_loss: tf.Tensor
  metrics: dict[str, tf.Tensor]


def in_memory(name: str) -> client_store.ClientStore:
  """Returns a new store in memory, for arrays of any name."""
  del name
  return client_store.create('ram', lambda k: np.zeros(0))


class Uploads(Sequence[np.ndarray]):
  """Stored arrays, each read when it is accessed."""

  def __init__(self, handles: Sequence[client_store.Handle]):
    self._handles = handles

  def __len__(self) -> int:
    return len(self._handles)

  def __getitem__(self, i: Any) -> Any:
    if isinstance(i, slice):
      return Uploads(self._handles[i])
    return self._handles[i].read()


class CohortOutput(NamedTuple):
  """The outputs of a round's clients.

  Attributes:
    t: the round.
    ids: the clients that answered.
    missing: the clients that did not answer in time.
    outputs: of each client of `ids`, without its arrays.
    kept: name -> the stored arrays of clients with finite results.
    uploads: name -> the arrays that were sent, in the order of `ids`.
    bytes_up: the bytes of an upload besides its model.
  """

  t: int
  ids: np.ndarray
  missing: np.ndarray
  outputs: list[ClientOutput]
  kept: dict[str, dict[int, client_store.Handle]]
  uploads: dict[str, Uploads]
  bytes_up: int

  @property
  def finite(self) -> np.ndarray:
    """Whether each client's results are finite numbers."""
    return self.column('finite').astype(bool)

  @property
  def sent(self) -> np.ndarray:
    """Whether each upload is sent and can be used."""
    return self.finite & self.column('sent').astype(bool)

  @property
  def metrics(self) -> dict[str, np.ndarray]:
    """The metrics of all clients, by name."""
    names = self.outputs[0].metrics if self.outputs else ()
    return {n: np.array([o.metrics[n] for o in self.outputs]) for n in names}

  def column(self, name: str) -> np.ndarray:
    """Returns a field of all outputs."""
    return np.array([getattr(output, name) for output in self.outputs])

  def updates(
    self, clients: client_data.ClientData, needs: Sequence[str]
  ) -> algorithm_lib.Updates:
    """Returns what the aggregator gets, with the metrics it needs."""
    sent, metrics = self.sent, self.metrics
    ids = self.ids[sent]
    return algorithm_lib.Updates(
      t=self.t,
      ids=ids,
      arrays=self.uploads,
      m=clients.sizes[ids],
      num_clients=clients.num_clients,
      metrics={name: metrics[name][sent] for name in needs},
    )


class Collector:
  """Stores clients' arrays, one client at a time.

  Args:
    t: the round.
    stores: where to store what clients keep, and under 'upload/...' what they
      upload but do not keep.
  """

  def __init__(self, t: int, stores: Stores):
    self._t = t
    self._stores = stores
    self._ids: list[int] = []
    self._missing: list[int] = []
    self._outputs: list[ClientOutput] = []
    self._kept: dict[str, dict[int, client_store.Handle]] = {}
    self._uploads: dict[str, list[client_store.Handle]] = {}
    self._bytes_up = 0

  def add(self, k: int, output: ClientOutput) -> None:
    """Adds the next client; its `upload` has all that it uploads."""
    self._ids.append(k)
    self._outputs.append(output._replace(kept={}, upload={}))
    if not output.finite:
      return
    for name, array in output.kept.items():
      self._kept.setdefault(name, {})[k] = self._stores(name).put(array)
    if not output.sent:
      return
    upload = output.upload
    self._bytes_up = sum(a.nbytes for n, a in upload.items() if n != 'z')
    for name, array in upload.items():
      if array is output.kept.get(name):
        handle = self._kept[name][k]
      else:
        handle = self._stores(f'upload/{name}').put(array)
      self._uploads.setdefault(name, []).append(handle)

  def miss(self, k: int) -> None:
    """Notes that a client did not answer."""
    self._missing.append(k)

  def output(self) -> CohortOutput:
    """Returns the outputs of all clients."""
    uploads = {
      name: Uploads(handles) for name, handles in self._uploads.items()
    }
    return CohortOutput(
      self._t,
      np.array(self._ids, np.int64),
      np.array(self._missing, np.int64),
      self._outputs,
      self._kept,
      uploads,
      self._bytes_up,
    )
