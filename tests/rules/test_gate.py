import dataclasses
import itertools
import math

import numpy as np
import pytest
import tensorflow as tf

import safl_tf
from safl_tf.core import seeds
from safl_tf.rules import aggregate, client_work, gate
from safl_tf.util import errors
from tests import tiny_numpy, tiny_rounds

VECTORS = [  # h_global, h_local, nu, delta, q
  (0.9, 0.95, 0.1, 0.027027, 0.763173),
  (0.3, 0.9, 0.5, 0.5, 0.367880),
  (0.3, 0.9, 0.1, 0.5, 0.006738),
  (0.0, 0.0, 0.15, 0.0, 1.0),
  (1.0, 1.0, 0.15, 0.0, 1.0),
]


CLIENTS, CONFIG = tiny_rounds.CLIENTS, tiny_rounds.CONFIG
METRICS = (
  'accuracy',
  'global_accuracy',
  'loss',
  'global_loss',
  'train_loss',
  'distance',
  'norm',
)


def seed():
  return tf.constant(seeds.pair(0, seeds.Role.GATE, 0))


def named(h_global, h_local):
  return {'global_accuracy': h_global, 'accuracy': h_local}


def decide(h_global, h_local, nu):
  return gate.accuracy_gap(nu).decide(seed(), 1.0, named(h_global, h_local))


def sent(h_global, h_local, nu, total, jit_compile=False):
  """Whether the client uploads, for each of many seeds."""
  keys = [seeds.pair(0, seeds.Role.GATE, i) for i in range(total)]
  rule = gate.accuracy_gap(nu).decide

  @tf.function(jit_compile=jit_compile)
  def run(keys):
    return tf.map_fn(
      lambda key: rule(key, 1.0, named(h_global, h_local)).sent,
      keys,
      fn_output_signature=tf.bool,
    )

  return run(tf.constant(np.stack(keys))).numpy()


@pytest.mark.parametrize('h_global, h_local, nu, delta, q', VECTORS)
def test_vectors(h_global, h_local, nu, delta, q):
  decision = decide(h_global, h_local, nu)
  gap = abs(h_global - h_local) / (h_global + h_local + 1e-6)
  assert gap == pytest.approx(delta, abs=1e-6)
  assert math.exp(-gap / nu) == pytest.approx(q, abs=1e-6)
  assert float(decision.delta) == pytest.approx(gap, abs=1e-7)
  assert float(decision.q) == pytest.approx(math.exp(-gap / nu), abs=1e-7)


def test_symmetric():
  rng = np.random.default_rng(0)
  for a, b in rng.random((20, 2)):
    one, other = decide(a, b, 0.15), decide(b, a, 0.15)
    assert one.q == other.q and one.delta == other.delta


def test_falls_with_the_gap():
  q = [float(decide(0.5, h, 0.15).q) for h in np.linspace(0.5, 1, 51)]
  assert q[0] == 1
  assert all(a > b for a, b in itertools.pairwise(q))


def test_rises_with_nu():
  q = [float(decide(0.5, 0.9, nu).q) for nu in (0.05, 0.1, 0.15, 1.0)]
  assert all(a < b for a, b in itertools.pairwise(q))


@pytest.mark.parametrize('h', [0.0, 0.37, 1.0])
def test_equal_accuracies_always_send(h):
  assert sent(h, h, 1e-3, 1000).all()


def test_large_nu_always_sends():
  assert sent(0.0, 1.0, 1e12, 1000).all()
  assert decide(0.0, 1.0, 1e12).q == 1


def test_small_nu_never_sends():
  assert not sent(0.9, 0.95, 1e-6, 1000).any()
  assert decide(0.9, 0.95, 1e-6).q == 0


@pytest.mark.parametrize('h_global, h_local', [(0.9, 0.95), (0.8, 1.0)])
def test_frequency_of_sending(h_global, h_local):
  total = 10_000
  q = float(decide(h_global, h_local, 0.1).q)
  assert 0.1 < q < 0.9
  share = sent(h_global, h_local, 0.1, total).mean()
  assert abs(share - q) < 4 * math.sqrt(q * (1 - q) / total)


def test_seed_decides_and_xla_agrees():
  plain, again, fast = (
    sent(0.9, 0.95, 0.1, 1000, jit) for jit in (False, False, True)
  )
  np.testing.assert_array_equal(plain, again)
  np.testing.assert_array_equal(plain, fast)
  assert plain.any() and not plain.all()


def test_always():
  rule = gate.always()
  assert rule.needs == ()
  decision = rule.decide(seed(), 1.0, {})
  assert decision.sent and decision.q == 1 and decision.delta == 0


def test_accuracy_gap_needs_accuracies():
  rule = gate.accuracy_gap()
  assert sorted(rule.needs) == ['accuracy', 'global_accuracy']
  fed_avg = safl_tf.build_fed_avg()
  assert dataclasses.replace(fed_avg, gate=rule).measures
  assert not fed_avg.measures


@pytest.mark.parametrize('nu', [0, -1.0, math.nan, math.inf, 'a'])
def test_refused(nu):
  with pytest.raises(errors.InputError, match=f'^nu={nu}: must be a number'):
    gate.accuracy_gap(nu)


def with_norm(begun, trained):
  norms = {'norm': tf.norm(trained.z) + begun.t}
  return trained._replace(metrics={**trained.metrics, **norms})


NORM = client_work.ClientWork(end=with_norm)


def by(name, least=-math.inf, **rules):
  """FedAvg whose gate reads one metric."""

  def decide(seed, t, metrics):
    [value] = metrics.values()
    return gate.Decision(metrics[name] >= least, 0.5, value)

  rules = {'client_work': NORM} | rules
  return dataclasses.replace(
    safl_tf.build_fed_avg(), gate=gate.Gate(decide, needs=(name,)), **rules
  )


def expected(name, states, k):
  """A client's metric in round 2, from the models."""
  z_bar, z = states[1].z_bar, states[2].client_models[k]
  if name == 'train_loss':
    return tiny_numpy.train(CLIENTS, CONFIG, 2, k, z_bar)[1]
  if name == 'distance':
    return np.linalg.norm(z.astype(float) - z_bar)
  if name == 'norm':
    return np.linalg.norm(z.astype(float)) + 2
  rows, kind = CLIENTS.indices(k), name.removeprefix('global_')
  losses, right, _ = tiny_numpy.evaluate(
    z_bar if name.startswith('global_') else z, CLIENTS.x[rows], CLIENTS.y[rows]
  )
  return np.mean(losses if kind == 'loss' else right)


def run(rules, rounds=2, **options):
  return tiny_rounds.run(tiny_rounds.make(rules, **options), rounds)


@pytest.mark.parametrize(
  'name, executor',
  [
    *((name, 'threads') for name in METRICS),
    *((name, 'vectorized') for name in ('global_loss', 'distance')),
  ],
)
def test_own_gate_gets_the_metric(name, executor):
  states, metrics = run(by(name), executor=executor)
  values = [expected(name, states, k) for k in metrics[1].ids]
  np.testing.assert_allclose(metrics[1].delta, values, rtol=1e-4, atol=1e-6)
  np.testing.assert_array_equal(metrics[1].metrics[name], metrics[1].delta)
  assert set(metrics[1].metrics) == {name, 'norm'}
  assert metrics[1].bytes_up == 6 * 4 * 63  # gates read on the client


def test_distance_without_a_global_model_is_zero():
  _, [metrics] = run(by('distance'), 1)
  assert (metrics.metrics['distance'] == 0).all()
  assert metrics.sent.all() and (metrics.q == 1).all()


def test_own_gate_withholds():
  _, [_, metrics] = run(by('distance', least=0.3))
  far = metrics.metrics['distance'] >= 0.3
  assert far.any() and not far.all()
  np.testing.assert_array_equal(metrics.sent, far)


def test_held_out_examples_are_measured():
  config = dataclasses.replace(CONFIG, holdout=0.5)
  states, [_, metrics] = run(by('loss'), config=config)
  on_all = [expected('loss', states, k) for k in metrics.ids]
  assert not np.allclose(metrics.metrics['loss'], on_all, rtol=1e-3)


def reading(needs, seen):
  """An aggregator that records what it gets."""

  def apply(memory, updates, z_bar):
    seen.append(updates)
    return aggregate.by_size().apply(memory, updates, z_bar)

  return aggregate.Aggregator(apply, needs=needs)


@pytest.mark.parametrize('needs', [('accuracy',), ('norm', 'loss')])
def test_aggregator_gets_metrics_in_the_order_of_ids(needs):
  seen = []
  select = lambda seed, t, n: np.array([0, 2, 3, 5])
  rules = by(
    'distance', least=0.3, select=select, aggregate=reading(needs, seen)
  )
  states, [_, metrics] = run(rules)
  updates = seen[1]
  assert 0 < len(updates.ids) < 4
  np.testing.assert_array_equal(updates.ids, metrics.ids[metrics.sent])
  assert set(updates.metrics) == set(needs)
  for name in needs:
    values = [expected(name, states, k) for k in updates.ids]
    np.testing.assert_allclose(updates.metrics[name], values, rtol=1e-4)
  assert metrics.bytes_up == len(updates.ids) * 4 * (63 + len(needs))


@pytest.mark.parametrize('rule', ['gate', 'aggregate'])
@pytest.mark.parametrize(
  'needs, message',
  [
    (('los',), r'\.needs=los: must be one of accuracy, .*, distance, norm, or'),
    ('loss', r"\.needs=loss: must be a tuple of names, such as \('loss',\)"),
    (None, r'\.needs=None: must be a tuple'),
    ((1,), r'\.needs=tuple: must be a tuple'),
    ((), '=loss: reads this metric, which .*needs does not name'),
  ],
)
def test_wrong_needs(rule, needs, message):
  def decide(seed, t, metrics):
    return gate.Decision(True, metrics['loss'], 0.0)

  def apply(memory, updates, z_bar):
    return updates.metrics['loss']

  record = {
    'gate': gate.Gate(decide, needs=needs),
    'aggregate': aggregate.Aggregator(apply, needs=needs),
  }[rule]
  rules = dataclasses.replace(
    safl_tf.build_fed_avg(), client_work=NORM, **{rule: record}
  )
  with pytest.raises(errors.InputError, match=f'^{rule}{message}') as caught:
    run(rules)
  assert '\n' not in str(caught.value)
