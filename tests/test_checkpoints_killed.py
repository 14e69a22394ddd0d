"""A run that is killed, at any time, has a whole checkpoint."""

import builtins
import multiprocessing
import os
import random

import pytest

from safl_tf import checkpoints
from tests import test_checkpoints as shared


class KilledError(BaseException):
  """Stands for a kill: nothing that the process does after it works."""


class Mortal:
  """Lets the first `lives` calls through and then none."""

  def __init__(self, lives):
    self.lives = lives

  def wrap(self, function):
    def wrapped(*args, **kwargs):
      if self.lives <= 0:
        raise KilledError
      self.lives -= 1
      return function(*args, **kwargs)

    return wrapped


@pytest.mark.parametrize('keep', [1, 2])
@pytest.mark.parametrize('earlier', [0, 1, 3])
def test_killed_at_every_step_of_a_save(tmp_path, caplog, keep, earlier):
  new = earlier + 1
  outcomes = []
  for lives in range(100):
    folder = tmp_path / str(lives)
    for number in range(1, new):
      shared.save(folder, number, keep)
    with pytest.MonkeyPatch.context() as patch:
      mortal = Mortal(lives)
      patch.setattr(builtins, 'open', mortal.wrap(open))
      for name in ('fsync', 'replace', 'unlink', 'makedirs'):
        patch.setattr(os, name, mortal.wrap(getattr(os, name)))
      try:
        shared.save(folder, new, keep)
      except KilledError:
        finished = False
      else:
        finished = True
    saved = checkpoints.Checkpoints(folder, keep)
    restored = saved.restore_latest()
    if restored is None:
      assert earlier == 0
      outcomes.append(0)
    else:
      shared.check(restored, restored[0])
      outcomes.append(restored[0])
    # The next save works and clears away what the killed one left.
    shared.save(folder, new + 1, keep)
    assert len(os.listdir(folder)) == 2 * min(keep, len(saved.rounds()))
    shared.check(saved.restore_latest(), new + 1)
    if finished:
      break
  assert finished
  assert set(outcomes) == {earlier, new}  # the old one or the new one ...
  assert outcomes == sorted(outcomes)  # ... and the new one from then on
  assert caplog.messages == []


def save_for_ever(folder, connection):
  saved = checkpoints.Checkpoints(folder)
  restored = saved.restore_latest()
  number = restored[0] if restored else 0
  connection.send('ready')
  while True:
    number += 1
    saved.save(number, *shared.content(number))


def test_killed_at_random(tmp_path, caplog):
  context = multiprocessing.get_context('forkserver')  # imports only once
  context.set_forkserver_preload(['tests.test_checkpoints_killed'])
  delays = random.Random(0)
  last = 0
  for _ in range(15):
    ours, theirs = context.Pipe()
    writer = context.Process(
      target=save_for_ever, args=(tmp_path, theirs), daemon=True
    )
    writer.start()
    assert ours.poll(60)
    writer.join(delays.uniform(0.05, 0.4))
    writer.kill()
    writer.join()
    assert writer.exitcode == -9
    restored = checkpoints.Checkpoints(tmp_path).restore_latest()
    if restored is not None:
      shared.check(restored, restored[0])
      assert restored[0] >= last
      last = restored[0]
  assert last > 0
  assert caplog.messages == []
