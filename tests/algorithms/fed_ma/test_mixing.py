"""All layers at once, with SAFL's clients."""

import dataclasses

import numpy as np
import pytest

import safl_tf
from safl_tf.algorithms.fed_ma import build, layer_weights
from safl_tf.core import client_config, process
from safl_tf.rules import aggregate, gate, mix
from safl_tf.util import errors
from tests import tiny
from tests.algorithms.fed_ma import nets, test_rounds

SIZES = (40, 33, 51, 27)
LARGEST = 2
CONFIG = test_rounds.CONFIG
STILL = client_config.LocalConfig(
  local_epochs=1, batch_size=20, learning_rate=1e-30
)
ONESHOT = build.FedMA(schedule='oneshot')
rounds = test_rounds.rounds


def make(algorithm, config=CONFIG, **options):
  algorithm = dataclasses.replace(algorithm, driver=ONESHOT)
  return process.FederatedProcess(
    nets.mlp,
    tiny.clients(SIZES),
    algorithm,
    config,
    jit_compile='false',
    **options,
  )


def start(trainer, models):
  state = trainer.initialize(0)
  return state._replace(
    clients={'z': state.client_models.updated(dict(enumerate(models)))}
  )


def test_clients_keep_their_models_in_the_global_order():
  trainer = make(safl_tf.build_safl(epsilon=0.3, temperature=4), STILL)
  chain = nets.chain_of(trainer.model)
  z = nets.noise(chain.size)
  noisy = [z + nets.noise(z.size, 0.003, seed=k + 1) for k in range(4)]
  copies, orders = zip(
    *(nets.permuted(chain, w, seed=k) for k, w in enumerate(noisy)), strict=True
  )
  states, _ = rounds(trainer, 2, start(trainer, copies))
  aligned = [layer_weights.pick(chain, w, orders[LARGEST]) for w in noisy]
  for k, w in enumerate(aligned):
    assert states[1].client_models[k].tobytes() == w.tobytes()
  # In the next round each element is z̄'s, or some of it is kept.
  z_bar, near = states[1].z_bar, {'rtol': 0, 'atol': 1e-7}
  kept = []
  for k, w in enumerate(aligned):
    new = states[2].client_models[k]
    is_global = np.isclose(new, z_bar, **near)
    is_local = np.isclose(new, 0.3 * z_bar + 0.7 * w, **near)
    assert (is_global | is_local).all()
    kept.append(is_local.mean())
  assert 0.4 < np.mean(kept) < 0.8  # p = exp(-2/4) = 0.61


def test_safl_learns():
  trainer = make(safl_tf.build_safl(temperature=5))
  states, metrics = rounds(trainer, 14)
  x, y = tiny.blobs(500, seed=1)
  outputs = np.asarray(trainer.get_model(states[-1])(x))
  assert np.mean(outputs.argmax(axis=1) == y) > 0.95
  assert 0 < metrics[-1].kept_local < 1
  assert len(states[-1].client_models) == 4


def test_nobody_uploads():
  trainer = make(safl_tf.build_extended_safl(nu=1e-9))
  states, metrics = rounds(trainer, 3)
  assert metrics[0].sent.all()  # before there is a global model all do
  withheld = [m for m in metrics[1:] if not m.sent.any()]
  assert withheld
  for before, after, m in zip(states[:-1], states[1:], metrics, strict=True):
    if not m.sent.any():
      assert after.z_bar is before.z_bar and after.memory is before.memory
      assert m.bytes_up == 0
      for k in range(4):  # they trained all the same
        assert not np.array_equal(
          after.client_models[k], before.client_models[k]
        )


def test_some_upload():
  trainer = make(safl_tf.build_extended_safl(nu=0.3, temperature=1e9))
  states, metrics = rounds(trainer, 5)
  sent = np.array([m.sent for m in metrics])
  assert sent[0].all() and not sent[1:].all() and sent[1:].any()
  for state, m in zip(states[1:], metrics, strict=True):
    if m.sent.any():
      np.testing.assert_array_equal(state.memory['global_ids'], m.ids[m.sent])


def test_fed_avg_by_matching_is_fed_ma():
  one = make(safl_tf.build_fed_avg())
  other = test_rounds.make(schedule='oneshot')
  assert test_rounds.bits(rounds(one, 3)[0][-1]) == test_rounds.bits(
    rounds(other, 3)[0][-1]
  )


def test_models_may_be_on_the_disk(tmp_path):
  algorithm = safl_tf.build_safl(temperature=5)
  on_disk = make(algorithm, client_store='mmap', store_dir=tmp_path)
  result = [rounds(p, 3)[0][-1] for p in (on_disk, make(algorithm))]
  assert test_rounds.bits(result[0]) == test_rounds.bits(result[1])


@pytest.mark.parametrize(
  'settings, hint',
  [
    ({'matching': 'bbp', 'schedule': 'oneshot'}, "changes the layers' widths"),
    ({'schedule': 'layerwise'}, 'no global model within a pass'),
  ],
)
@pytest.mark.parametrize(
  'name, rule', [('mix', mix.anneal()), ('gate', gate.accuracy_gap())]
)
def test_unsupported_rules_are_refused(name, rule, settings, hint):
  algorithm = dataclasses.replace(safl_tf.build_fed_avg(), **{name: rule})
  with pytest.raises(errors.InputError, match=hint) as error:
    dataclasses.replace(algorithm, driver=build.FedMA(**settings))
  assert error.value.argument == name


@pytest.mark.parametrize(
  'changes', [{'one_step': True}, {'pooled': True}, {'alone': True}]
)
def test_other_loops_are_refused(changes):
  with pytest.raises(errors.InputError) as error:
    dataclasses.replace(safl_tf.build_fed_ma(), **changes)
  assert error.value.argument == 'driver'


def test_another_aggregator_is_refused():
  with pytest.raises(errors.InputError) as error:
    dataclasses.replace(safl_tf.build_fed_ma(), aggregate=aggregate.krum())
  assert error.value.argument == 'aggregate'
