"""The contract of a federated algorithm: its rules and the types they use.

`rules` has implementations, `algorithms` has published compositions of them.
`select` and `aggregate` run on the server, on NumPy arrays; `mix`,
`client_work` and `gate` are compiled into a client's round, on tensors. What
the server broadcasts, what a client keeps and what it uploads are named arrays;
'z' is the model in all three.
"""

import dataclasses
import functools
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar, cast

import numpy as np
import tensorflow as tf

from safl_tf.core import layout as layout_lib
from safl_tf.util import errors

Arrays = Mapping[str, np.ndarray]
Tensors = Mapping[str, tf.Tensor]
# Name -> NumPy array, or `client_store.ClientStore`: one array of each client
Memory = dict[str, Any]

# (seed, t, n) -> sorted ids of the clients of round t, S_t
Select = Callable[[int, int, int], np.ndarray]

# Client metrics that rules may ask for by name, besides those of the client
# work: means of the trained and of the global model over the client's data,
# which cost two passes over them,
MEASURED = ('accuracy', 'global_accuracy', 'loss', 'global_loss')
# and the mean loss during training, ‖z - z̄‖ (0 without z̄).
METRICS = (*MEASURED, 'train_loss', 'distance')

_NO_RULES = ('validate', 'name')  # fields of an algorithm
_Builder = TypeVar('_Builder', bound=Callable[..., 'Algorithm'])


class Mixed(NamedTuple):
  """The model a client starts its round from, the result of `Algorithm.mix`.

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


class ClientRound(NamedTuple):
  """What a client has at the start of its round.

  Attributes:
    t: the round, or the number of local steps, see `LocalConfig.anneal_clock`.
    received: the server's arrays; 'z' is z̄, or any values if there is none.
    has_global: whether there is a z̄.
    kept: the client's own arrays from its last round; 'z' is its model.
    w: the model that it starts from, of `Mix`, shape [P].
    learning_rate: α; None if the optimizer is a Keras object.
  """

  t: tf.Tensor
  received: Tensors
  has_global: tf.Tensor
  kept: Tensors
  w: tf.Tensor
  learning_rate: float | None


class Trained(NamedTuple):
  """What a client has at the end of its round.

  Attributes:
    z: the trained model [P].
    steps: the number of local steps; with `loss_reduction='sum'`, the number
      of examples in them, as a step is then the sum of its examples' steps.
    kept: the arrays to keep for the next round; those left out stay as before.
    upload: the arrays to upload, with 'z'.
    metrics: float32 scalars by name, for gates, aggregators and `RoundMetrics`.
  """

  z: tf.Tensor
  steps: tf.Tensor
  kept: Tensors
  upload: Tensors
  metrics: Tensors


def no_arrays(layout: layout_lib.Layout) -> dict[str, np.ndarray]:
  """Returns no arrays."""
  del layout
  return {}


class ClientWork(NamedTuple):
  """What a client does besides plain training, as pure functions.

  Those on tensors are compiled into the round by every executor.

  Attributes:
    init: layout -> the arrays, besides its model, of a client that has never
      participated.
    receives: layout -> the arrays, besides z̄, that clients receive, with their
      first values. `Aggregator.broadcast` provides them.
    start: ClientRound -> what `gradient` and `project` use: scalars, and
      vectors as long as z or its trainable part, of which they get the part of
      each trainable tensor.
    gradient: (g, w, values, weight) -> the gradient that the optimizer gets in
      place of g, for each trainable tensor w. g is `weight` times the gradient
      of the mean loss over the batch: 1, or with `loss_reduction='sum'` the
      number of examples.
    project: (w, before, values) -> the tensor after a step, in place of w.
    end: (ClientRound, Trained) -> Trained. It gets a client that keeps and
      uploads its model.
    full_batch: whether a client takes a single step, with the gradient of the
      mean loss over all its data, instead of E epochs.
    plain_sgd: whether clients must train with the optimizer 'sgd'.

  Example:
    ```python
    work = safl_tf.client_work.ClientWork(  # L2 regularisation on the clients
      gradient=lambda g, w, values, weight: g + weight * 0.01 * w)
    regularised = dataclasses.replace(safl_tf.build_safl(), client_work=work)
    result = safl_tf.train(model_fn, clients, regularised, rounds=2)
    ```
  """

  init: Callable[[layout_lib.Layout], Arrays] = no_arrays
  receives: Callable[[layout_lib.Layout], Arrays] = no_arrays
  start: Callable[[ClientRound], Tensors] | None = None
  gradient: Callable[..., tf.Tensor] | None = None
  project: Callable[..., tf.Tensor] | None = None
  end: Callable[[ClientRound, Trained], Trained] | None = None
  full_batch: bool = False
  plain_sgd: bool = False


PLAIN_TRAINING = ClientWork()


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
    decide: (seed [2] int32, t, metrics by name) -> Decision.
    needs: the names of the metrics that `decide` reads: 'accuracy' and 'loss'
      of the trained model, 'global_accuracy' and 'global_loss' of z̄,
      'train_loss', 'distance' (‖z - z̄‖), or those that the client work
      returns.

  Example:
    ```python
    gate = safl_tf.gate.Gate(  # uploads models that have moved
      lambda seed, t, metrics: safl_tf.gate.Decision(
        metrics['distance'] >= 0.1, q=1.0, delta=0.0),
      needs=('distance',))
    lazy = dataclasses.replace(safl_tf.build_safl(), gate=gate)
    result = safl_tf.train(model_fn, clients, lazy, rounds=2)
    ```
  """

  decide: Callable[[tf.Tensor, tf.Tensor, Tensors], Decision]
  needs: tuple[str, ...] = ()


class Updates(NamedTuple):
  """The r uploads of a round, in the order of `ids`.

  Attributes:
    t: the round.
    ids: the clients, sorted, shape [r].
    arrays: name -> the r uploaded arrays, read one at a time when accessed.
    m: the clients' numbers of examples, shape [r].
    num_clients: n, of all clients.
    metrics: name -> the metrics that the aggregator needs, shape [r].
  """

  t: int
  ids: np.ndarray
  arrays: Mapping[str, Sequence[np.ndarray]]
  m: np.ndarray
  num_clients: int
  metrics: Mapping[str, np.ndarray] = types.MappingProxyType({})

  @property
  def z(self) -> Sequence[np.ndarray]:
    """The uploaded models, r vectors of shape [P]."""
    return self.arrays['z']


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


def broadcast_nothing(memory: Memory) -> dict[str, np.ndarray]:
  """Returns no arrays: clients receive z̄ only."""
  del memory
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
    uploads: (layout, t) -> the number of elements of its model that a client
      uploads in round t.
    broadcast: memory -> the arrays that clients receive besides z̄.
    needs: the names of the metrics that clients upload, see `Gate.needs`.

  Example:
    ```python
    def average(memory, updates, z_bar):  # unweighted
      ones = np.ones(len(updates.ids))
      z = safl_tf.aggregate.weighted_mean(ones, updates.z)
      return safl_tf.aggregate.Aggregated(z, memory)

    plain = dataclasses.replace(
      safl_tf.build_safl(), aggregate=safl_tf.aggregate.Aggregator(average))
    result = safl_tf.train(model_fn, clients, plain, rounds=2)
    ```
  """

  apply: Callable[[Memory, Updates, np.ndarray | None], Aggregated]
  init: Callable[[layout_lib.Layout], Memory] = no_arrays
  uploads: Callable[[layout_lib.Layout, int], int] = upload_all
  broadcast: Callable[[Memory], Arrays] = broadcast_nothing
  needs: tuple[str, ...] = ()


class Driver(Protocol):
  """Runs rounds that are not the loop of `FederatedProcess.next`."""

  def check(self, algorithm: 'Algorithm') -> None:
    """Raises `InputError` for rules that the driver does not support."""

  def adapt(self, work: ClientWork) -> ClientWork:
    """Returns the client work of its rounds, given the algorithm's."""

  def bind(self, trainer: Any, algorithm: 'Algorithm') -> Any:
    """Returns the `process.Rounds` that train with a `ClientTrainer`."""


@dataclasses.dataclass(frozen=True)
class Algorithm:
  """A federated algorithm: independent rules.

  `build_*` functions return published ones. Replace a rule with
  `dataclasses.replace` to get another algorithm.

  Attributes:
    select: draws the clients of a round, S_t; see `select`.
    mix: combines z̄ and a client's own z into the model the client trains; see
      `mix`.
    gate: decides whether a client uploads; see `gate`.
    aggregate: computes z̄ from the uploads; see `aggregate`.
    client_work: what a client does besides plain training; see `client_work`.
    shared_start: whether there is a global model before the first round, which
      all clients start from.
    pooled: whether one client holds the data of all.
    alone: whether clients never receive z̄; evaluation then scores every
      client's own model.
    driver: replaces the loop of `FederatedProcess.next`.
    validate: raises `InputError` for rules that the algorithm does not allow.
    name: of the published algorithm; 'own' for other rules.

  Example:
    ```pycon
    >>> algorithm = dataclasses.replace(
    ...   safl_tf.build_safl(), gate=safl_tf.gate.accuracy_gap(nu=0.2))
    >>> algorithm.name
    'own'
    >>> algorithm.settings['nu']
    0.2
    >>> sorted(algorithm.needs)
    ['accuracy', 'global_accuracy']
    ```
  """

  select: Select
  mix: Mix
  gate: Gate
  aggregate: Aggregator
  client_work: ClientWork = PLAIN_TRAINING
  shared_start: bool = False
  pooled: bool = False
  alone: bool = False
  driver: Driver | None = None
  validate: Callable[['Algorithm'], None] | None = None
  name: str = dataclasses.field(default='own', init=False)

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
  def needs(self) -> frozenset[str]:
    """The names of the client metrics that the rules read."""
    return frozenset(self.gate.needs) | frozenset(self.aggregate.needs)

  @property
  def measures(self) -> bool:
    """Whether clients measure models on their data after training."""
    return not self.needs.isdisjoint(MEASURED)

  @property
  def settings(self) -> dict[str, Any]:
    """The numbers and texts by which the rules were built, by name."""
    from safl_tf.util import readable

    return readable.settings(tuple(self._rules().values()))

  def __repr__(self) -> str:
    return f'Algorithm({self.name}: {", ".join(self._labels().values())})'

  def _repr_html_(self) -> str:
    from safl_tf.util import readable

    return readable.html_table(f'Algorithm {self.name}', self._labels())

  def _labels(self) -> dict[str, str]:
    """Returns the rules as short texts; defaults are left out."""
    from safl_tf.util import readable

    return {
      name: name if rule is True else readable.label(rule)
      for name, rule in self._rules().items()
      if rule not in (None, False, PLAIN_TRAINING)
    }

  def _rules(self) -> dict[str, Any]:
    return {
      field.name: getattr(self, field.name)
      for field in dataclasses.fields(self)
      if field.name not in _NO_RULES
    }


def published(name: str) -> Callable[[_Builder], _Builder]:
  """Makes a function name the algorithms that it builds.

  `dataclasses.replace` of such an algorithm gives one without that name.
  """

  def decorate(build: _Builder) -> _Builder:
    @functools.wraps(build)
    def build_named(*args: Any, **kwargs: Any) -> Algorithm:
      return with_name(name, build(*args, **kwargs))

    return cast(_Builder, build_named)

  return decorate


def with_name(name: str, algorithm: Algorithm) -> Algorithm:
  """Returns the same rules under a name."""
  algorithm = dataclasses.replace(algorithm)
  object.__setattr__(algorithm, 'name', name)  # of a new one
  return algorithm


def describe(algorithm: Algorithm) -> dict[str, str]:
  """Returns each rule as text, such as `anneal.mix(epsilon=0.3, ...)`.

  Rules with the same code that refer to equal values have the same text; a run
  is recognised by it. See `util.describe`.
  """
  return {
    name: describe_rule(name, rule) for name, rule in algorithm._rules().items()
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
