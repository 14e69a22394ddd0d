import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from safl_tf import algorithms, errors, names, seeds
from safl_tf.rules import gate

KEY = tf.constant(seeds.pair(0, seeds.Role.MIX, 1))


def start(algorithm, t=1.0):
  """What a device with z = 0 starts from when z_bar = 1: u."""
  return algorithm.mix(KEY, t, tf.ones(1000), tf.zeros(1000)).w.numpy()


def test_fed_avg():
  algorithm = algorithms.build_fed_avg()
  np.testing.assert_array_equal(start(algorithm), 1)
  assert not algorithm.gate.needs_accuracy
  np.testing.assert_array_equal(algorithm.select(0, 1, 4), range(4))


def test_safl_is_fed_avg_with_mixing():
  algorithm = algorithms.build_safl(epsilon=0.25, temperature=1e20)
  np.testing.assert_array_equal(start(algorithm), 0.25)
  assert not algorithm.gate.needs_accuracy


def test_extended_safl_is_safl_with_a_gate():
  algorithm = algorithms.build_extended_safl(0.25, 1e20, nu=0.5)
  np.testing.assert_array_equal(start(algorithm), 0.25)
  assert algorithm.gate.needs_accuracy
  q = algorithm.gate.decide(KEY, 1.0, 0.3, 0.9).q
  assert float(q) == pytest.approx(0.367880, abs=1e-6)


@pytest.mark.parametrize('name', names.ALGORITHMS)
def test_who_takes_part(name):
  assert len(algorithms.build(name, fraction=0.5).select(0, 1, 10)) == 5
  assert len(algorithms.build(name, devices_per_round=3).select(0, 1, 10)) == 3


@pytest.mark.parametrize('name', ['safl', 'extended_safl'])
def test_granularity(name):
  algorithm = algorithms.build(name, mix_granularity='model', temperature=1.0)
  assert len(np.unique(start(algorithm))) == 1
  assert len(np.unique(start(algorithms.build(name, temperature=1.0)))) == 2


def test_build_passes_over_what_an_algorithm_does_not_take():
  algorithm = algorithms.build('fedavg', epsilon=7, seed=3, fraction=0.5)
  assert len(algorithm.select(0, 1, 4)) == 2
  with pytest.raises(errors.InputError, match=r'^epsilon=7: '):
    algorithms.build('safl', epsilon=7)
  with pytest.raises(errors.InputError, match=r'^algorithm=fedsgd: did you'):
    algorithms.build('fedsgd')


def test_a_rule_is_replaced():
  algorithm = dataclasses.replace(
    algorithms.build_safl(0.25, 1e20), gate=gate.accuracy_gap(0.2)
  )
  assert algorithm.gate.needs_accuracy
  np.testing.assert_array_equal(start(algorithm), 0.25)
  with pytest.raises(dataclasses.FrozenInstanceError):
    algorithm.gate = gate.always()
