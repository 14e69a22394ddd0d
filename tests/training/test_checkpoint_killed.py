"""A run that is killed at any time has an intact checkpoint."""

import builtins
import functools
import multiprocessing
import os
import random

import pytest

from safl_tf.training import checkpoint
from tests.training import test_checkpoint as shared


class KilledError(BaseException):
  """Simulates a kill: no later call of the process succeeds."""


class Mortal:
  """Lets only the first `lives` calls succeed."""

  def __init__(self, lives):
    self.lives = lives

  def wrap(self, function):
    def wrapped(*args, **kwargs):
      if self.lives <= 0:
        raise KilledError
      self.lives -= 1
      return function(*args, **kwargs)

    return wrapped


def killed_after(lives, save):
  """Returns whether `save` finished before it was killed."""
  with pytest.MonkeyPatch.context() as patch:
    mortal = Mortal(lives)
    patch.setattr(builtins, 'open', mortal.wrap(open))
    for name in ('fsync', 'replace', 'unlink', 'makedirs'):
      patch.setattr(os, name, mortal.wrap(getattr(os, name)))
    try:
      save()
    except KilledError:
      return False
  return True


@pytest.mark.parametrize('keep', [1, 2])
@pytest.mark.parametrize('earlier', [0, 1, 3])
def test_killed_at_every_step_of_a_save(tmp_path, caplog, keep, earlier):
  new = earlier + 1
  outcomes = []
  for lives in range(100):
    folder = tmp_path / str(lives)
    for number in range(1, new):
      shared.save(folder, number, keep)
    finished = killed_after(
      lives, functools.partial(shared.save, folder, new, keep)
    )
    saved = checkpoint.Checkpoints(folder, keep)
    restored = saved.restore_latest({'z': shared.create()})
    if restored is None:
      assert earlier == 0
      outcomes.append(0)
    else:
      shared.check(restored, restored.round_number)
      outcomes.append(restored.round_number)
    # The next save succeeds and deletes the leftovers of the killed one.
    shared.save(folder, new + 1, keep)
    assert len(os.listdir(folder)) == 2 * min(keep, len(saved.rounds()))
    shared.check(saved.restore_latest({'z': shared.create()}), new + 1)
    if finished:
      break
  assert finished
  assert set(outcomes) == {earlier, new}  # the old one or the new one ...
  assert outcomes == sorted(outcomes)  # ... and the new one from then on
  assert caplog.messages == []


@pytest.mark.parametrize('keep', [1, 2])
@pytest.mark.parametrize('earlier', [1, 2, 5, 6, 7, 8])
def test_killed_at_every_step_of_an_incremental_save(
  tmp_path, caplog, keep, earlier
):
  """One chain begins in rounds 1, 5, 9; two in 1 and 2, 7 and 8."""
  new = earlier + 1
  outcomes = []
  for lives in range(100):
    folder = tmp_path / str(lives)
    saved, client_models = shared.save_all(folder, range(1, new), keep)
    begin = earlier - (earlier - 1) % (4 if keep == 1 else 6)
    if keep == 2:
      begin += (earlier - begin) % 2
    assert shared.chain(folder, earlier) == list(range(begin, new, keep))
    client_models = client_models.updated(shared.trained(new))
    finished = killed_after(
      lives,
      lambda: saved.save(new, *shared.content(new), {'z': client_models}),  # noqa: B023
    )
    again = checkpoint.Checkpoints(folder, keep)  # resumes
    restored = again.restore_latest({'z': shared.create()})
    shared.check(restored, restored.round_number)
    outcomes.append(restored.round_number)
    client_models = restored.stores['z']
    for t in range(restored.round_number + 1, new + 3):
      client_models = client_models.updated(shared.trained(t))
      again.save(t, *shared.content(t), {'z': client_models})
      shared.check_files(folder)
      shared.check(shared.restore(folder), t)
    if finished:
      break
  assert finished
  assert set(outcomes) == {earlier, new}
  assert outcomes == sorted(outcomes)
  assert caplog.messages == []


def test_killed_at_every_step_of_a_restore(tmp_path):
  """Of four, the two newest are corrupt."""
  for lives in range(100):
    folder = tmp_path / str(lives)
    shared.save_all(folder, range(1, 5), keep=4)
    assert shared.chain(folder, 4) == [2, 4]
    shared.flip(folder / 'round_000003.npz')
    shared.flip(folder / 'round_000004.npz')
    finished = killed_after(lives, functools.partial(shared.restore, folder))
    saved = checkpoint.Checkpoints(folder)
    restored = saved.restore_latest({'z': shared.create()})
    shared.check(restored, 2)
    client_models = restored.stores['z'].updated(shared.trained(3))
    saved.save(3, *shared.content(3), {'z': client_models})
    shared.check(shared.restore(folder), 3)
    if finished:
      break
  assert finished


def save_forever(folder, connection):
  saved = checkpoint.Checkpoints(folder)
  restored = saved.restore_latest({'z': shared.create()})
  number = restored.round_number if restored else 0
  client_models = restored.stores['z'] if restored else shared.create()
  connection.send('ready')
  while True:
    number += 1
    client_models = client_models.updated(shared.trained(number))
    saved.save(number, *shared.content(number), {'z': client_models})


@pytest.mark.slow
def test_killed_at_random(tmp_path, caplog):
  context = multiprocessing.get_context('forkserver')  # imports only once
  context.set_forkserver_preload(['tests.training.test_checkpoint_killed'])
  delays = random.Random(0)
  last, chains = 0, set()
  for _ in range(15):
    ours, theirs = context.Pipe()
    writer = context.Process(
      target=save_forever, args=(tmp_path, theirs), daemon=True
    )
    writer.start()
    assert ours.poll(60)
    writer.join(delays.uniform(0.05, 0.4))
    writer.kill()
    writer.join()
    assert writer.exitcode == -9
    restored = shared.restore(tmp_path)
    if restored is not None:
      shared.check(restored, restored.round_number)
      assert restored.round_number >= last
      last = restored.round_number
      chains.add(len(shared.chain(tmp_path, last)))
  assert last > 0
  assert max(chains) > 1
  assert caplog.messages == []
