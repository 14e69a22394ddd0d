"""What the devices of a round do, and what is told of it."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from absl import logging

from safl_tf import attacks, device_trainer, local, seeds, states
from safl_tf.data import client_data


class Start(NamedTuple):
  """What a device begins its round with.

  Attributes:
    z: its own model [P].
    z_bar: the server's, None before there is one.
    frozen: how many of the trained tensors, from the input on, stay as they
      are.
  """

  z: np.ndarray
  z_bar: np.ndarray | None
  frozen: int = 0


class Trained(NamedTuple):
  """A round's devices after they trained.

  Attributes:
    t: the round.
    ids: the devices.
    own: what each of them trained, and keeps.
    updates: what it would upload: the same, but for hostile devices.
  """

  t: int
  ids: np.ndarray
  own: list[local.Update]
  updates: list[local.Update]

  @property
  def finite(self) -> np.ndarray:
    """Whether each update is made of finite numbers."""
    return self.column('finite').astype(bool)

  @property
  def sent(self) -> np.ndarray:
    """Whether each update is uploaded and can be used."""
    return self.finite & self.column('sent').astype(bool)

  def kept(self) -> dict[int, np.ndarray]:
    """Each device's new model of its own, where its update is finite."""
    rows = zip(self.ids.tolist(), self.own, self.finite, strict=True)
    return {k: update.z for k, update, finite in rows if finite}

  def column(self, name: str) -> np.ndarray:
    """A field of all updates."""
    return np.array([getattr(update, name) for update in self.updates])


class Cohort:
  """Trains devices, some of which may be hostile.

  Args:
    clients: the devices' data.
    config: how a device trains.
    attack: what hostile devices do, if there are any.
    hostile: which they are.
  """

  def __init__(
    self,
    clients: client_data.ClientData,
    config: local.LocalConfig,
    attack: attacks.Attack | None,
    hostile: np.ndarray,
  ):
    self._clients = clients
    self._config = config
    self._attack = attack
    self._hostile = hostile

  def train(
    self,
    trainer: device_trainer.DeviceTrainer,
    seed: int,
    t: int,
    ids: np.ndarray,
    start: Callable[[int], Start],
  ) -> Trained:
    """On each device: mix, E epochs, gate.

    Args:
      trainer: for models of the devices' shape.
      seed: of the run.
      t: the round.
      ids: the devices.
      start: device -> what it begins with.
    """

    def make_task(k: int) -> local.Task:
      return self._task(trainer, seed, t, k, start(k))

    own = trainer(make_task, ids.tolist())
    return Trained(t, ids, own, self._spoiled(t, ids, own, start))

  def measure(
    self, trained: Trained, sent: np.ndarray, bytes_up: int, bytes_down: int
  ) -> states.RoundMetrics:
    """A round's metrics.

    Args:
      trained: the round's devices.
      sent: whether each device's update was used.
      bytes_up: what a device uploads, if it does.
      bytes_down: what a device receives.
    """
    t, ids, finite = trained.t, trained.ids, trained.finite
    dropped = ids[~finite]
    if len(dropped):
      told = ', '.join(self._clients.client_ids[k] for k in dropped[:5])
      more = f' and {len(dropped) - 5} more' if len(dropped) > 5 else ''
      logging.warning(
        'round %d: update not finite, dropped: device %s%s', t, told, more
      )
    return states.RoundMetrics(
      t=t,
      ids=ids,
      sent=sent,
      dropped=dropped,
      hostile=int(np.isin(ids, self._hostile).sum()),
      q=trained.column('q'),
      delta=trained.column('delta'),
      p=_mean(trained.column('p')),
      kept_local=_mean(trained.column('kept_local')),
      train_loss=_mean(trained.column('train_loss')[finite]),
      bytes_up=int(sent.sum()) * bytes_up,
      bytes_down=len(ids) * bytes_down,
    )

  def _task(
    self,
    trainer: device_trainer.DeviceTrainer,
    seed: int,
    t: int,
    k: int,
    start: Start,
  ) -> local.Task:
    config = self._config
    roles = (seeds.Role.MIX, seeds.Role.GATE, seeds.Role.MODEL)
    trained, measured = local.split(
      self._clients.indices(k),
      config,
      seeds.generator(seed, seeds.Role.HOLDOUT, k),
    )
    return local.Task(
      z_bar=start.z if start.z_bar is None else start.z_bar,
      has_global=start.z_bar is not None,
      z=start.z,
      seeds=np.stack([seeds.pair(seed, role, t, k) for role in roles]),
      clock=config.clock(t, len(trained)),
      plan=local.plan_batches(
        trained,
        config,
        trainer.max_steps,
        seeds.generator(seed, seeds.Role.BATCHES, t, k),
      ),
      measured=local.plan_measuring(measured, config, trainer.max_measured),
      frozen=np.int32(start.frozen),
      iteration=np.int64(config.iteration(t, len(trained))),
    )

  def _spoiled(
    self,
    t: int,
    ids: np.ndarray,
    updates: list[local.Update],
    start: Callable[[int], Start],
  ) -> list[local.Update]:
    """What devices upload where some are hostile."""
    if self._attack is None or not self._attack.on_uploads:
      return updates
    found = list(updates)
    for i in np.flatnonzero(np.isin(ids, self._hostile)):
      k = int(ids[i])
      begun = start(k)
      w = begun.z if begun.z_bar is None else begun.z_bar
      z = self._attack.spoil(t, k, updates[i].z, w)
      found[i] = updates[i]._replace(z=z, finite=np.isfinite(z).all())
    return found


def _mean(values: np.ndarray) -> float:
  return float(values.mean(dtype=np.float64)) if len(values) else np.nan
