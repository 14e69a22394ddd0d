import itertools
import math

import numpy as np
import pytest
import tensorflow as tf

from safl_tf.core import seeds
from safl_tf.rules import gate
from safl_tf.util import errors

VECTORS = [  # h_global, h_local, nu, delta, q
  (0.9, 0.95, 0.1, 0.027027, 0.763173),
  (0.3, 0.9, 0.5, 0.5, 0.367880),
  (0.3, 0.9, 0.1, 0.5, 0.006738),
  (0.0, 0.0, 0.15, 0.0, 1.0),
  (1.0, 1.0, 0.15, 0.0, 1.0),
]


def seed():
  return tf.constant(seeds.pair(0, seeds.Role.GATE, 0))


def decide(h_global, h_local, nu):
  return gate.accuracy_gap(nu).decide(seed(), 1.0, h_global, h_local)


def sent(h_global, h_local, nu, total, jit_compile=False):
  """Whether the client uploads, for each of many seeds."""
  keys = [seeds.pair(0, seeds.Role.GATE, i) for i in range(total)]
  rule = gate.accuracy_gap(nu).decide

  @tf.function(jit_compile=jit_compile)
  def run(keys):
    return tf.map_fn(
      lambda key: rule(key, 1.0, h_global, h_local).sent,
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
  assert not rule.needs_accuracy
  decision = rule.decide(seed(), 1.0, 0.0, 1.0)
  assert decision.sent and decision.q == 1 and decision.delta == 0


def test_accuracy_gap_needs_accuracies():
  assert gate.accuracy_gap().needs_accuracy


@pytest.mark.parametrize('nu', [0, -1.0, math.nan, math.inf, 'a'])
def test_refused(nu):
  with pytest.raises(errors.InputError, match=f'^nu={nu}: must be a number'):
    gate.accuracy_gap(nu)
