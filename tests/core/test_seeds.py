import itertools

import numpy as np
import pytest

from safl_tf.core import seeds


def key(*arguments):
  return tuple(seeds.pair(*arguments).tolist())


def test_pair_is_a_stateless_seed():
  pair = seeds.pair(3, seeds.Role.MIX, 1, 2)
  assert pair.dtype == np.int32 and pair.shape == (2,)


def test_functions_of_their_arguments():
  assert key(3, seeds.Role.MIX, 1, 2) == key(3, seeds.Role.MIX, 1, 2)
  draws = [
    seeds.generator(3, seeds.Role.SELECT, 7).integers(2**62, size=4)
    for _ in range(2)
  ]
  np.testing.assert_array_equal(*draws)


def test_every_argument_matters():
  keys = [
    key(seed, role, *indices)
    for seed in (0, 1, 2**40)
    for role in seeds.Role
    for indices in itertools.chain(
      [(), (0,), (1,)], itertools.product(range(6), repeat=2)
    )
  ]
  assert len(set(keys)) == len(keys)


def test_generators_differ():
  first = [
    seeds.generator(0, role, t, k).integers(2**62)
    for role in seeds.Role
    for t in range(5)
    for k in range(5)
  ]
  assert len(set(first)) == len(first)


def test_numpy_integers_are_integers():
  assert key(3, seeds.Role.MIX, 1, 2) == key(
    3, seeds.Role.MIX, np.int64(1), np.int32(2)
  )


def test_roles_keep_their_numbers():
  """A seed means the same draws in every version."""
  assert {role.name: role.value for role in seeds.Role} == {
    'INIT': 1,
    'SELECT': 2,
    'BATCHES': 3,
    'MIX': 4,
    'GATE': 5,
    'MODEL': 6,
    'PARTITION': 7,
    'ATTACK': 8,
    'MATCH': 9,
    'HOLDOUT': 10,
    'SPLIT': 11,
  }
  expected = np.random.SeedSequence(3, spawn_key=(4, 2, 10, 20))
  np.testing.assert_array_equal(
    seeds.pair(3, seeds.Role.MIX, 10, 20),
    expected.generate_state(2).view(np.int32),
  )
  assert seeds.generator(3, seeds.Role.MIX, 10, 20).random() == (
    np.random.Generator(np.random.Philox(expected)).random()
  )


def test_draws_are_uniform():
  draws = [
    seeds.generator(0, seeds.Role.SELECT, t).random() for t in range(4000)
  ]
  counts, _ = np.histogram(draws, bins=10, range=(0, 1))
  np.testing.assert_allclose(counts, 400, atol=4 * np.sqrt(400 * 0.9))


def test_negative_seeds_are_refused():
  with pytest.raises(ValueError):
    seeds.pair(-1, seeds.Role.MIX)
