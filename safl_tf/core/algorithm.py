"""The contract of a federated algorithm: four rules and the types they use.

`rules` has implementations, `algorithms` has published compositions of them.
`select` and `aggregate` run on the server, on NumPy arrays; `mix` and `gate`
are compiled into a client's round, on tensors.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from safl_tf.core import layout as layout_lib
from safl_tf.util import errors

# Name -> NumPy array, or `client_store.ClientStore`: one array of each client
Memory = dict[str, Any]

# (seed, t, n) -> sorted ids of the clients of round t, S_t
Select = Callable[[int, int, int], np.ndarray]


class Mixed(NamedTuple):
  """The model a client starts its round from.

  Attributes:
    w: the model to train, shape [P].
    p: the probability that an element is kept local.
    kept_local: the share of elements for which u_j = ε was drawn.
  """

  w: tf.Tensor
  p: tf.Tensor
  kept_local: tf.Tensor


# (seed [2] int32, t float32, z_bar [P], z [P]) -> Mixed
Mix = Callable[[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor], Mixed]


class Decision(NamedTuple):
  """A gate's decision on one update.

  Attributes:
    sent: whether the client uploads.
    q: the upload probability.
    delta: Δ, the gap that gave q.
  """

  sent: tf.Tensor
  q: tf.Tensor
  delta: tf.Tensor


class Gate(NamedTuple):
  """Decides whether a client uploads its update.

  Attributes:
    decide: (seed [2] int32, t, h_global, h_local) -> Decision.
    needs_accuracy: whether `decide` reads the accuracies, which cost two passes
      over the client's data.
  """

  decide: Callable[[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor], Decision]
  needs_accuracy: bool


class Updates(NamedTuple):
  """The r uploads of a round.

  Attributes:
    t: the round.
    ids: the clients, shape [r].
    z: their models, r vectors of shape [P].
    m: their numbers of examples, shape [r].
  """

  t: int
  ids: np.ndarray
  z: Sequence[np.ndarray]
  m: np.ndarray


class Aggregated(NamedTuple):
  """The result of an aggregation.

  Attributes:
    z_bar: the new global model [P].
    memory: the aggregator's new memory.
  """

  z_bar: np.ndarray
  memory: Memory


def upload_all(layout: layout_lib.Layout, t: int) -> int:
  """Returns P: clients upload the whole model in every round."""
  del t
  return layout.size


def no_memory(layout: layout_lib.Layout) -> Memory:
  """Returns the memory of an aggregator that has none."""
  del layout
  return {}


class Aggregator(NamedTuple):
  """Turns uploads into the global model.

  The memory is a dict of named arrays, which every checkpoint stores, and of
  `ClientStore`s, of which it stores what has changed. `init` has all stores;
  the process moves them to where it keeps the clients' models. The memory is a
  value: `apply` returns a new one and leaves the old one unchanged.

  Attributes:
    apply: (memory, updates with r > 0, z_bar or None) -> Aggregated.
    init: layout -> the initial memory.
    uploads: (layout, t) -> the number of elements a client uploads in round t.
  """

  apply: Callable[[Memory, Updates, np.ndarray | None], Aggregated]
  init: Callable[[layout_lib.Layout], Memory] = no_memory
  uploads: Callable[[layout_lib.Layout, int], int] = upload_all


class Driver(Protocol):
  """Runs rounds that are not the loop of `FederatedProcess.next`."""

  @property
  def freezes(self) -> bool:
    """Whether clients freeze some of their layers."""

  def check(self, algorithm: 'Algorithm') -> None:
    """Raises `InputError` for rules that the driver does not support."""

  def bind(self, trainer: Any, algorithm: 'Algorithm') -> Any:
    """Returns the `process.Rounds` that train with a `ClientTrainer`."""


@dataclasses.dataclass(frozen=True)
class Algorithm:
  """A federated algorithm: four independent rules.

  Replace a rule to get another algorithm:

    dataclasses.replace(build_safl(), gate=gate.accuracy_gap(nu=0.2))

  Attributes:
    select: draws the clients of a round.
    mix: combines z̄ and a client's own z into the model the client trains.
    gate: decides whether a client uploads.
    aggregate: computes z̄ from the uploads.
    one_step: whether a client takes a single step, with the gradient over all
      its data, from the global model, instead of E epochs.
    pooled: whether one client holds the data of all.
    alone: whether clients never receive z̄; evaluation then scores every
      client's own model.
    driver: replaces the loop of `FederatedProcess.next`.
    validate: raises `InputError` for rules that the algorithm does not allow.
  """

  select: Select
  mix: Mix
  gate: Gate
  aggregate: Aggregator
  one_step: bool = False
  pooled: bool = False
  alone: bool = False
  driver: Driver | None = None
  validate: Callable[['Algorithm'], None] | None = None

  def __post_init__(self) -> None:
    if self.validate is not None:
      self.validate(self)
    if self.driver is not None:
      self.driver.check(self)

  @property
  def communicates(self) -> bool:
    """Whether clients and server exchange anything."""
    return not (self.pooled or self.alone)

  @property
  def freezes(self) -> bool:
    """Whether clients freeze some of their layers."""
    return self.driver is not None and self.driver.freezes


def describe(algorithm: Algorithm) -> dict[str, str]:
  """Returns each rule as text, such as `anneal.mix(epsilon=0.3, ...)`.

  Rules with the same code that refer to equal values have the same text; a run
  is recognised by it. See `util.describe`.
  """
  return {
    field.name: describe_rule(field.name, getattr(algorithm, field.name))
    for field in dataclasses.fields(algorithm)
    if field.name != 'validate'
  }


def require_default(
  algorithm: Algorithm, name: str, default: Any, hint: str
) -> None:
  """Raises `InputError` with the hint if a rule is not the default one."""
  rule = getattr(algorithm, name)
  try:
    is_default = describe_rule(name, rule) == describe_rule(name, default)
  except errors.InputError:
    is_default = False
  if not is_default:
    raise errors.InputError(name, rule, hint)


def describe_rule(name: str, rule: Any) -> str:
  """Returns a rule as text; refuses one that cannot be described."""
  from safl_tf.util import describe as describe_lib

  parts = rule if isinstance(rule, tuple) else [rule]  # a gate, an aggregator
  return ', '.join(describe_lib.describe(name, part) for part in parts)
