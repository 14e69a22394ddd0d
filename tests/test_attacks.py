import json

import numpy as np
import pytest

import safl_tf
from safl_tf import attacks
from safl_tf.algorithms import registry
from safl_tf.core import client_config, process
from safl_tf.training import client_evaluation, loop
from safl_tf.util import choices, errors
from tests import tiny

pytestmark = pytest.mark.usefixtures('no_outputs')

SIZES = (20, 13, 31, 7, 16, 24, 11, 9, 28, 15)
CONFIG = client_config.LocalConfig(batch_size=16, learning_rate=0.01)


def make(attack, name='fedavg'):
  return process.FederatedProcess(
    tiny.dense,
    tiny.clients(SIZES),
    registry.build(name),
    CONFIG,
    jit_compile='false',
    attack=attack,
  )


def test_clients_are_chosen_by_the_seed():
  chosen = attacks.Attack('noise', fraction=0.2, seed=5).choose(100)
  assert len(chosen) == len(set(chosen)) == 20
  assert sorted(chosen) == chosen.tolist()
  again = attacks.Attack('label_flip', fraction=0.2, seed=5).choose(100)
  np.testing.assert_array_equal(chosen, again)
  other = attacks.Attack('noise', fraction=0.2, seed=6).choose(100)
  assert not np.array_equal(chosen, other)
  assert len(attacks.Attack('noise', fraction=0.0).choose(7)) == 0
  assert len(attacks.Attack('noise', fraction=1.0).choose(7)) == 7


def test_one_label():
  clients = tiny.clients(SIZES)
  attack = attacks.Attack('one_label', fraction=0.3)
  poisoned = attack.poison(clients)
  np.testing.assert_array_equal(poisoned.sizes, clients.sizes)
  assert poisoned.x is clients.x
  malicious = attack.choose(len(SIZES))
  for k in range(len(SIZES)):
    labels = set(poisoned.y[poisoned.indices(k)])
    before = set(clients.y[clients.indices(k)])
    if k in malicious:
      assert len(labels) == 1 and labels < before
    else:
      np.testing.assert_array_equal(poisoned.indices(k), clients.indices(k))


def test_one_label_with_few_examples_of_it():
  x, y = tiny.blobs(40)
  y[:] = 0
  y[:3] = 1
  clients = tiny.clients((20, 20), x, y)
  attack = attacks.Attack('one_label', fraction=1.0, seed=1)
  poisoned = attack.poison(clients)
  np.testing.assert_array_equal(poisoned.sizes, [20, 20])


def test_label_flip():
  clients = tiny.clients(SIZES)
  attack = attacks.Attack('label_flip', fraction=0.3)
  poisoned = attack.poison(clients)
  malicious = attack.choose(len(SIZES))
  assert len(malicious) == 3
  for k in range(len(SIZES)):
    a, b = clients.indices(k), poisoned.indices(k)
    np.testing.assert_array_equal(clients.x[a], poisoned.x[b])
    y = clients.y[a]
    expected = 2 - y if k in malicious else y
    np.testing.assert_array_equal(poisoned.y[b], expected)
  np.testing.assert_array_equal(clients.y, tiny.blobs(sum(SIZES))[1])


def test_uploads():
  z = np.array([3.0, 5.0, -1.0], np.float32)
  start = np.array([1.0, 1.0, 1.0], np.float32)

  def spoil(kind, strength=1.0, t=1, k=2):
    attack = attacks.Attack(kind, strength=strength)
    return attack.corrupt(t, k, z, start)

  np.testing.assert_array_equal(spoil('sign_flip'), [-1, -3, 3])
  np.testing.assert_array_equal(spoil('sign_flip', 2.0), [-3, -7, 5])
  np.testing.assert_array_equal(spoil('scale', 10.0), [21, 41, -19])
  assert np.isnan(spoil('nonfinite')).all()
  noisy = spoil('noise', 0.5)
  assert noisy.dtype == np.float32
  assert noisy.tobytes() == spoil('noise', 0.5).tobytes()
  assert noisy.tobytes() != spoil('noise', 0.5, t=2).tobytes()
  assert noisy.tobytes() != spoil('noise', 0.5, k=3).tobytes()
  wide = np.zeros(100_000, np.float32)
  noise = attacks.Attack('noise', strength=0.5).corrupt(1, 0, wide, wide)
  assert noise.std() == pytest.approx(0.5, rel=0.01)


def test_malicious_clients_upload_one_thing_and_keep_another():
  """By hand: z̄ of two rounds, with flipped updates of the malicious."""
  attack = attacks.Attack('sign_flip', fraction=0.3, strength=2.0)
  trainer, honest = make(attack), make(None)
  state, metrics = trainer.next(trainer.initialize(0))
  plain, _ = honest.next(honest.initialize(0))
  assert metrics.malicious == 3
  m = np.array(SIZES, np.float64)
  start = trainer.initialize(0)
  sent = []
  for k in range(len(SIZES)):
    z = plain.client_models[k].astype(np.float64)
    assert state.client_models[k].tobytes() == plain.client_models[k].tobytes()
    own = start.client_models[k]
    sent.append(own - 2 * (z - own) if k in trainer.malicious else z)
  expected = np.average(sent, axis=0, weights=m)
  np.testing.assert_allclose(state.z_bar, expected, atol=1e-6)
  later, _ = trainer.next(state)
  honest_later, _ = honest.next(state)
  sent = [
    3 * state.z_bar - 2 * honest_later.client_models[k].astype(np.float64)
    if k in trainer.malicious
    else honest_later.client_models[k]
    for k in range(len(SIZES))
  ]
  expected = np.average(sent, axis=0, weights=m)
  np.testing.assert_allclose(later.z_bar, expected, atol=1e-6)


@pytest.mark.parametrize('kind', choices.ATTACKS[1:])
def test_they_are_recorded(kind, tmp_path):
  result = loop.train(
    tiny.dense,
    tiny.clients(SIZES),
    safl_tf.build_fed_avg(),
    rounds=2,
    config=CONFIG,
    jit_compile='false',
    attack=attacks.Attack(kind, fraction=0.2, seed=3),
    output_dir=tmp_path,
    progress=False,
  )
  assert [row['malicious'] for row in result.history] == [2, 2]
  assert np.isfinite(result.state.z_bar).all()
  recorded = json.loads((tmp_path / 'attack.json').read_text())
  assert recorded['kind'] == kind and recorded['fraction'] == 0.2
  assert recorded['clients'] == result.process.malicious.tolist()
  table = client_evaluation.client_table(result.process, result.state)
  malicious = [k for k, row in enumerate(table) if row['malicious']]
  assert malicious == recorded['clients']
  with pytest.raises(errors.InputError, match='attack was'):
    loop.train(
      tiny.dense,
      tiny.clients(SIZES),
      safl_tf.build_fed_avg(),
      rounds=3,
      config=CONFIG,
      output_dir=tmp_path,
      progress=False,
    )


def test_no_attack_no_record(tmp_path):
  result = loop.train(
    tiny.dense,
    tiny.clients(SIZES),
    rounds=1,
    config=CONFIG,
    output_dir=tmp_path,
    progress=False,
  )
  assert result.history[0]['malicious'] == 0
  assert not (tmp_path / 'attack.json').exists()


@pytest.mark.parametrize('name', ['centralized', 'local_only'])
def test_uploads_can_be_attacked_only_where_there_are_some(name):
  with pytest.raises(errors.InputError, match=r'^attack=noise: .* no uploads'):
    make(attacks.Attack('noise'), name)
  assert len(make(attacks.Attack('label_flip'), name).malicious) == 2


def test_arguments():
  for arguments, argument in (
    ({'kind': 'none'}, 'attack'),
    ({'kind': 'noise', 'fraction': 1.1}, 'attack_fraction'),
    ({'kind': 'noise', 'strength': -1.0}, 'attack_strength'),
    ({'kind': 'noise', 'seed': -1}, 'seed'),
  ):
    with pytest.raises(errors.InputError, match=f'^{argument}='):
      attacks.Attack(**arguments)


@pytest.mark.slow
def test_robust_aggregators_stand_what_an_average_does_not():
  """Two of ten clients flip and enlarge their updates."""
  attack = attacks.Attack('sign_flip', fraction=0.2, strength=10.0)

  def accuracy(aggregator):
    return loop.train(
      tiny.dense,
      tiny.clients((40,) * 10),
      registry.build('fedavg', aggregator=aggregator),
      test_data=tiny.blobs(500, seed=1),
      rounds=30,
      config=CONFIG,
      init='shared',
      jit_compile='false',
      attack=attack,
      eval_every=30,
      progress=False,
    ).history[-1]['test_accuracy']

  assert accuracy('size') < 0.8
  for aggregator in (
    'median',
    'trimmed_mean',
    'krum',
    'multi_krum',
    'geometric_median',
  ):
    assert accuracy(aggregator) > 0.95
