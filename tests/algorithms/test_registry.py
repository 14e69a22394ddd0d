import dataclasses

import numpy as np
import pytest
import tensorflow as tf

import safl_tf
from safl_tf.algorithms import registry
from safl_tf.core import algorithm as algorithm_lib
from safl_tf.core import seeds
from safl_tf.rules import aggregate, gate, mix
from safl_tf.util import choices, errors

KEY = tf.constant(seeds.pair(0, seeds.Role.MIX, 1))


def start(algorithm, t=1.0):
  """What a client with z = 0 starts from when z_bar = 1: u."""
  return algorithm.mix(KEY, t, tf.ones(1000), tf.zeros(1000)).w.numpy()


def test_fed_avg():
  algorithm = safl_tf.build_fed_avg()
  np.testing.assert_array_equal(start(algorithm), 1)
  assert not algorithm.measures
  np.testing.assert_array_equal(algorithm.select(0, 1, 4), range(4))


def test_safl_is_fed_avg_with_mixing():
  algorithm = safl_tf.build_safl(epsilon=0.25, temperature=1e20)
  np.testing.assert_array_equal(start(algorithm), 0.25)
  assert not algorithm.measures


def test_extended_safl_is_safl_with_a_gate():
  algorithm = safl_tf.build_extended_safl(0.25, 1e20, nu=0.5)
  np.testing.assert_array_equal(start(algorithm), 0.25)
  assert algorithm.measures
  h = {'global_accuracy': 0.3, 'accuracy': 0.9}
  q = algorithm.gate.decide(KEY, 1.0, h).q
  assert float(q) == pytest.approx(0.367880, abs=1e-6)


@pytest.mark.parametrize(
  'name', sorted({*choices.ALGORITHMS} - {'centralized'})
)
def test_who_takes_part(name):
  assert len(registry.build(name, fraction=0.5).select(0, 1, 10)) == 5
  assert len(registry.build(name, clients_per_round=3).select(0, 1, 10)) == 3


@pytest.mark.parametrize('name', ['safl', 'extended_safl'])
def test_granularity(name):
  algorithm = registry.build(name, mix_granularity='model', temperature=1.0)
  assert len(np.unique(start(algorithm))) == 1
  assert len(np.unique(start(registry.build(name, temperature=1.0)))) == 2


def test_bad_values():
  with pytest.raises(errors.InputError, match=r'^epsilon=7: '):
    registry.build('safl', epsilon=7)
  with pytest.raises(errors.InputError, match=r'^algorithm=fedsdg: did you'):
    registry.build('fedsdg')


def test_a_rule_is_replaced():
  algorithm = dataclasses.replace(
    safl_tf.build_safl(0.25, 1e20), gate=gate.accuracy_gap(0.2)
  )
  assert algorithm.measures
  np.testing.assert_array_equal(start(algorithm), 0.25)
  with pytest.raises(dataclasses.FrozenInstanceError):
    algorithm.gate = gate.always()


def test_every_name_has_a_builder():
  assert tuple(registry.BUILDERS) == choices.ALGORITHMS
  assert ('auto', *registry.AGGREGATORS) == choices.AGGREGATORS


@pytest.mark.parametrize('aggregator', choices.AGGREGATORS[1:])
def test_fusions_by_name(aggregator):
  changed = registry.build('extended_safl', aggregator=aggregator)
  own = registry.build('extended_safl')
  description, expected = (
    algorithm_lib.describe(changed),
    algorithm_lib.describe(own),
  )
  assert {k for k in description if description[k] != expected[k]} <= {
    'aggregate'
  }
  assert (description['aggregate'] == expected['aggregate']) == (
    aggregator == 'size'
  )


def test_arguments_of_fusions_and_of_the_server():
  description = algorithm_lib.describe(
    registry.build(
      'safl',
      aggregator='trimmed_mean',
      trim_fraction=0.1,
      server_optimizer='yogi',
      server_learning_rate=0.5,
      server_beta_1=0.8,
    )
  )['aggregate']
  assert 'trim_fraction=0.1' in description and 'yogi' in description
  assert 'learning_rate=0.5' in description and 'beta_1=0.8' in description
  ida = algorithm_lib.describe(registry.build('ida', ida_norm='l1'))[
    'aggregate'
  ]
  assert "norm='l1'" in ida


def test_layers_of_astw():
  def layerwise(name, **arguments):
    description = algorithm_lib.describe(registry.build(name, **arguments))[
      'aggregate'
    ]
    return 'layerwise=True' in description

  assert layerwise('astw') and not layerwise('astw_safl')
  assert not layerwise('astw', astw_layerwise=False)
  assert layerwise('astw_safl', astw_layerwise=True)


def test_what_makes_no_sense_is_refused():
  bbp = registry.build('fedma', fedma_matching='bbp')
  with pytest.raises(errors.InputError, match='widths'):
    dataclasses.replace(bbp, mix=mix.anneal())
  with pytest.raises(errors.InputError, match='within a pass'):
    dataclasses.replace(registry.build('fedma'), gate=gate.accuracy_gap())
  with pytest.raises(errors.InputError, match='FedMA is an aggregator'):
    dataclasses.replace(
      registry.build('fedma'), aggregate=aggregate.coordinate_median()
    )
  for flag, value in (('aggregator', 'krum'), ('server_optimizer', 'adam')):
    with pytest.raises(errors.InputError, match=f'^{flag}={value}: FedMA'):
      registry.build('fedma', **{flag: value})
  oneshot = registry.build('fedma', fedma_schedule='oneshot')
  dataclasses.replace(oneshot, mix=mix.anneal(), gate=gate.accuracy_gap())
