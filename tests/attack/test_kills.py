"""A training that is killed twenty times ends like one that never was."""

import random
import time

import pytest

from tests.binaries import programs
from tests.binaries.test_resume import check_equal, rounds_done

ROUNDS = 600  # more than 20 lives suffice for
KILLS = 20


@pytest.mark.attack
def test_twenty_kills(tmp_path, dense):
  command = (
    '--num_clients=16',
    '--mean_examples=60',
    '--clients_per_round=3',
    '--jit_compile=false',
    f'--rounds={ROUNDS}',
    '--checkpoint_every=1',
    '--eval_every=50',
    '--export=none',
    f'--model={dense}',
    f'--output_dir={tmp_path}',
  )
  rng = random.Random(0)
  killed = tmp_path / 'killed'
  for _ in range(KILLS):
    process = programs.start(
      '-m', 'binaries.train', *command, '--experiment=killed'
    )
    done, limit = rounds_done(killed), time.monotonic() + 120
    if rng.random() < 0.7:  # after a few rounds, at any moment of one
      while rounds_done(killed) <= done + 1 and process.poll() is None:
        assert time.monotonic() < limit
        time.sleep(0.001)
      time.sleep(rng.random() * 0.1)
    else:  # while it starts
      time.sleep(rng.random() * 4)
    assert process.poll() is None, process.communicate()
    process.kill()
    process.communicate()
  assert 0 < rounds_done(killed) < ROUNDS
  assert programs.call('train', *command, '--experiment=killed') == 0
  assert programs.call('train', *command, '--experiment=whole') == 0
  check_equal(killed, tmp_path / 'whole')
  assert not [p for p in killed.rglob('*') if '.partial-' in p.name]
