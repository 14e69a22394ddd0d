"""The state of a run between rounds, and the metrics of a round."""

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import numpy as np

from safl_tf.core import client_store
from safl_tf.util import errors, validation


class FederatedState(NamedTuple):
  """The state of a run after t rounds.

  Attributes:
    seed: of all random draws.
    t: the number of finished rounds.
    z_bar: the global model z̄ as one vector [P], None before the first upload.
    clients: what clients keep: name -> one array of each client. `z` has their
      own models.
    memory: the aggregator's memory: its arrays by name.

  Example:
    ```pycon
    >>> process = safl_tf.FederatedProcess(
    ...   model_fn, clients, safl_tf.build_safl())
    >>> state, _ = process.next(process.initialize(seed=0))
    >>> state.t, state.z_bar.shape  # P parameters
    (1, (2755,))
    >>> state.client_models[2].shape  # z of client 2
    (2755,)
    ```
  """

  seed: int
  t: int
  z_bar: np.ndarray | None
  clients: dict[str, client_store.ClientStore]
  memory: dict[str, Any]

  @property
  def client_models(self) -> client_store.ClientStore:
    """The clients' own models."""
    return self.clients['z']

  def kept(self, k: int) -> dict[str, np.ndarray]:
    """Returns the named arrays that client k keeps."""
    return {name: store[k] for name, store in self.clients.items()}


class WorkerMetrics(NamedTuple):
  """The workers of a cluster after a round.

  Attributes:
    alive: the number of workers.
    lost: the number of workers lost so far.
    bytes_sent: by the driver to workers in this round.
    bytes_received: by the driver from workers.
  """

  alive: int
  lost: int
  bytes_sent: int
  bytes_received: int


class WireMetrics(NamedTuple):
  """The messages of a round with real clients.

  Attributes:
    bytes_up: the bytes of replies, as they were on the wire.
    bytes_down: the bytes of requests.
  """

  bytes_up: int
  bytes_down: int


class RoundMetrics(NamedTuple):
  """The metrics of a round; arrays have an entry for each client of `ids`.

  Attributes:
    t: the round.
    ids: S_t, without the clients that are missing.
    sent: whether each client's update was used.
    dropped: clients whose update was not finite.
    malicious: the number of selected clients that are malicious.
    q: upload probabilities, equation (25).
    delta: accuracy gaps Δ, equation (24).
    p: probability that an element is kept local, averaged over clients.
    kept_local: measured share of elements kept local.
    train_loss: mean over clients.
    bytes_up: uploaded by clients.
    bytes_down: sent to clients.
    metrics: the clients' metrics that rules need or the client work returns.
    missing: real clients of S_t that did not answer in time.
    workers: those of a cluster; None if clients ran elsewhere.
    wire: the messages with real clients; None in a simulation.

  Example:
    ```pycon
    >>> process = safl_tf.FederatedProcess(
    ...   model_fn, clients, safl_tf.build_safl(clients_per_round=2))
    >>> state, metrics = process.next(process.initialize(seed=0))
    >>> metrics.t, len(metrics.ids), metrics.sent.tolist()
    (1, 2, [True, True])
    >>> metrics.bytes_up == 2 * state.z_bar.nbytes
    True
    ```
  """

  t: int
  ids: np.ndarray
  sent: np.ndarray
  dropped: np.ndarray
  malicious: int
  q: np.ndarray
  delta: np.ndarray
  p: float
  kept_local: float
  train_loss: float
  bytes_up: int
  bytes_down: int
  metrics: Mapping[str, np.ndarray]
  missing: np.ndarray
  workers: WorkerMetrics | None = None
  wire: WireMetrics | None = None


def check(
  state: Any,
  model_of: Callable[['FederatedState'], Any],
  num_clients: int,
  clients: Collection[str],
  memory: Mapping[str, tuple[int, ...] | None],
) -> None:
  """Refuses what is not a state of this process.

  Args:
    state: what the user gave.
    model_of: state -> the `FlatModel` of the shape of its z̄.
    num_clients: n.
    clients: the names of what clients keep.
    memory: the shapes of the aggregator's initial memory, None for a store.
      Arrays named `ids` hold clients; axes of length P keep that length.
  """

  def refuse(what: str, hint: str) -> None:
    hint = f'{hint}; it must come from initialize or next of this process'
    raise errors.InputError('state', what, hint)

  if not isinstance(state, FederatedState):
    refuse(type(state).__name__, 'is not a FederatedState')
  validation.integer('state.seed', state.seed, low=0)
  validation.integer('state.t', state.t, low=0)
  for name, value in ('clients', state.clients), ('memory', state.memory):
    if not isinstance(value, Mapping):
      refuse(name, 'is not a dict')
  model, z_bar = model_of(state), state.z_bar
  size, dtype = model.size, model.dtype
  if z_bar is not None:
    if not isinstance(z_bar, np.ndarray):
      refuse(f'z_bar of {type(z_bar).__name__}', 'is not an array')
    if z_bar.shape != (size,) or z_bar.dtype != dtype:
      actual = f'z_bar of {z_bar.dtype} {list(z_bar.shape)}'
      refuse(actual, f'is of another model, not of {np.dtype(dtype)} [{size}]')
    if not np.isfinite(z_bar).all():
      refuse('z_bar', 'is not finite')
  for name in clients:
    if name not in state.clients:
      refuse(f'clients without {name}', 'is of another algorithm')
  stores = {f'clients {name}': value for name, value in state.clients.items()}
  known = [-1]
  for name, shape in memory.items():
    array = state.memory.get(name)
    if array is None:
      refuse(f'memory without {name}', 'is of another aggregator')
    if shape is None:
      stores[f'memory {name}'] = array
      continue
    if not isinstance(array, np.ndarray):
      refuse(f'memory {name}', 'is not an array')
    axes = zip(shape, array.shape, strict=False)
    if any(now != size for before, now in axes if before == size):
      refuse(f'memory {name} {list(array.shape)}', 'is of another model')
    if name.split('/')[-1] == 'ids' and array.size:
      known.append(int(array.max()))
  for name, store in stores.items():
    if not isinstance(store, client_store.ClientStore):
      refuse(name, 'is not a ClientStore')
    known.extend(store.versions)
  if max(known) >= num_clients:
    refuse(f'client {max(known)}', f'is of more than {num_clients} clients')
