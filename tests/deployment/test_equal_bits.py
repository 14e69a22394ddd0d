"""Real clients have the bits of the simulation, through Flower's Grid."""

import numpy as np
import pytest

from safl_tf.algorithms import registry
from safl_tf.core import process as process_lib
from safl_tf.deployment import client_state
from tests import marks, memories, tiny_rounds
from tests.deployment import loopback

ROUNDS = 3
DEPLOYABLE = [
  'fedavg',
  'safl',
  'extended_safl',
  'ida_safl',
  'astw_safl',
  'scaffold',
  'scaffold_safl',
  'ida',
  'astw',
  'fedprox',
  'fedsgd',
  'feddyn',
]


def measured(metrics):
  """A round's metrics without those of the wire."""
  values = metrics._replace(wire=None, workers=None, metrics=None)
  return [np.asarray(value).tobytes() for value in values if value is not None]


def kept_by(federation, k):
  """What client k has on its disk."""
  [folder] = (federation.folder / f'client_{k}').glob('run_*')
  owner = {'run': federation.record.run, 'client': k, 'seed': 0}
  return client_state.ClientState(folder, owner).load()


def check(federation, rounds=ROUNDS):
  """Compares a federation with its simulation, round by round."""
  simulated = process_lib.FederatedProcess(
    federation.model,
    federation.clients,
    federation.algorithm,
    federation.config,
    **{'jit_compile': 'false', **federation.process_options},
  )
  deployed = federation.process()
  one, other = simulated.initialize(0), deployed.initialize(0)
  for _ in range(rounds):
    one, mine = simulated.next(one)
    other, others = deployed.next(other)
    check_same(federation, one, other)
    assert measured(mine) == measured(others)
    assert others.wire.bytes_up > others.bytes_up
    assert others.wire.bytes_down > others.bytes_down
  return deployed, one


def check_same(federation, one, other):
  if one.z_bar is not None:
    assert one.z_bar.tobytes() == other.z_bar.tobytes()
  memory = [memories.to_arrays(state.memory) for state in (one, other)]
  for name, array in memory[0].items():
    assert array.tobytes() == memory[1][name].tobytes()
  for k in one.client_models.versions:
    after = kept_by(federation, k).after
    for name, store in one.clients.items():
      assert after[name].tobytes() == store[k].tobytes()


@pytest.mark.parametrize(
  'name',
  marks.some(
    DEPLOYABLE,
    [
      'fedavg',
      'safl',
      'extended_safl',
      'ida_safl',
      'astw_safl',
      'scaffold',
    ],
  ),
)
def test_algorithm(tmp_path, name):
  algorithm = registry.build(name)
  config = tiny_rounds.CONFIG
  if algorithm.client_work.full_batch:
    config = tiny_rounds.ONE_STEP
  check(
    loopback.Federation(tmp_path, algorithm=algorithm, config=config),
  )
