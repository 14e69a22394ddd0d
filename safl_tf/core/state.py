"""The state of a run between rounds, and the metrics of a round."""

from typing import NamedTuple

import numpy as np

from safl_tf.core import client_store


class FederatedState(NamedTuple):
  """The state of a run after t rounds.

  Attributes:
    seed: of all random draws.
    t: the number of finished rounds.
    z_bar: the global model [P], None before the first upload.
    client_models: the clients' own models.
    memory: the aggregator's memory.
  """

  seed: int
  t: int
  z_bar: np.ndarray | None
  client_models: client_store.ClientStore
  memory: dict[str, np.ndarray]


class RoundMetrics(NamedTuple):
  """The metrics of a round; arrays have an entry for each selected client.

  Attributes:
    t: the round.
    ids: S_t.
    sent: whether each client's update was used.
    dropped: clients whose update was not finite.
    malicious: the number of selected clients that are malicious.
    q: upload probabilities.
    delta: accuracy gaps Δ.
    p: probability that an element is kept local, averaged over clients.
    kept_local: measured share of elements kept local.
    train_loss: mean over clients.
    bytes_up: uploaded by clients.
    bytes_down: sent to clients.
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
