"""Each device's own model z_k, between rounds."""

from collections.abc import Callable, Mapping

import numpy as np


class DeviceStore:
  """The devices' models; one that never took part has its initial model.

  A store is a value: `updated` gives a new one that shares all models that did
  not change, and the old one stays as it was. It costs memory for the devices
  that took part, not for all there are.

  Args:
    initial: device -> its initial model, drawn when it is first asked for.
    models: the models of devices that took part.
  """

  def __init__(
    self,
    initial: Callable[[int], np.ndarray],
    models: Mapping[int, np.ndarray] | None = None,
  ):
    self._initial = initial
    self._models = dict(models or {})

  def __getitem__(self, k: int) -> np.ndarray:
    model = self._models.get(k)
    return self._initial(k) if model is None else model

  def __len__(self) -> int:
    return len(self._models)

  def updated(self, models: Mapping[int, np.ndarray]) -> 'DeviceStore':
    """The store after some devices trained."""
    return DeviceStore(self._initial, {**self._models, **models})

  def to_arrays(self) -> dict[str, np.ndarray]:
    """The devices that took part [r] and their models [r, P]."""
    ids = sorted(self._models)
    models = [self._models[k] for k in ids]
    return {
      'device_ids': np.asarray(ids, np.int64),
      'device_models': np.stack(models) if models else np.zeros((0, 0)),
    }

  def from_arrays(self, arrays: Mapping[str, np.ndarray]) -> 'DeviceStore':
    """The store that `to_arrays` was called on."""
    ids, models = arrays['device_ids'], arrays['device_models']
    pairs = zip(ids.tolist(), models, strict=True)
    return DeviceStore(self._initial, dict(pairs))
