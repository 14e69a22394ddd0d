import numpy as np
import pytest
import tensorflow as tf

from safl_tf.rules import random_bits

SEED = tf.constant([1, 2])
N = 100_001


@pytest.mark.parametrize('jit_compile', [True, False])
@pytest.mark.parametrize(
  'p', [0.0, 2.0**-32, 1e-3, 0.25, np.nextafter(0.25, 1), 1 - 2.0**-32, 1.0]
)
def test_true_where_the_uniform_number_is_less(p, jit_compile):
  """32 random bits as a number in [0, 1), compared in float64."""
  bits = tf.random.stateless_uniform(
    [N], SEED, minval=None, maxval=None, dtype=tf.uint32, alg='philox'
  ).numpy()
  draw = tf.function(
    lambda p: random_bits.bernoulli(SEED, [N], p), jit_compile=jit_compile
  )
  drawn = draw(tf.constant(p, tf.float64))
  np.testing.assert_array_equal(drawn, bits.astype(np.float64) / 2**32 < p)


def test_limits():
  """The smallest and largest bits, which a test hardly ever draws."""
  for p, expected in (
    (0.0, [False, False]),
    (2.0**-33, [True, False]),
    (1 - 2.0**-33, [True, True]),
    (1 - 2.0**-32, [True, False]),
    (1.0, [True, True]),
  ):
    less = random_bits.less(
      tf.constant([0, 2**32 - 1], tf.uint32), tf.constant(p, tf.float64)
    )
    assert less.numpy().tolist() == expected
