"""What a run is between rounds, and what is told of a round."""

from typing import NamedTuple

import numpy as np

from safl_tf import store


class FederatedState(NamedTuple):
  """Everything a run is after t rounds.

  Attributes:
    seed: of all draws.
    t: rounds done.
    z_bar: the server's model [P], None before anything was received.
    devices: the devices' own models.
    memory: what the fusion remembers.
  """

  seed: int
  t: int
  z_bar: np.ndarray | None
  devices: store.DeviceStore
  memory: dict[str, np.ndarray]


class RoundMetrics(NamedTuple):
  """What happened in a round; lists have an entry for each selected device.

  Attributes:
    t: the round.
    ids: S_t.
    sent: whether each device's update was used.
    dropped: devices whose update was not finite.
    hostile: how many of the selected devices are hostile.
    q: upload probabilities.
    delta: accuracy gaps Δ.
    p: probability that an element is kept local, averaged over devices.
    kept_local: measured share of elements kept local.
    train_loss: mean over devices.
    bytes_up: uploaded by devices.
    bytes_down: sent to devices.
  """

  t: int
  ids: np.ndarray
  sent: np.ndarray
  dropped: np.ndarray
  hostile: int
  q: np.ndarray
  delta: np.ndarray
  p: float
  kept_local: float
  train_loss: float
  bytes_up: int
  bytes_down: int
