"""Names, texts and settings of algorithms."""

import dataclasses

import pytest

import safl_tf
from safl_tf.algorithms import registry
from safl_tf.core import algorithm as algorithm_lib


@pytest.mark.parametrize('name', registry.BUILDERS)
def test_published_algorithms_have_names(name):
  built = registry.BUILDERS[name]()
  assert built.name == registry.build(name).name == name
  assert repr(built).startswith(f'Algorithm({name}: uniform(fraction=1.0), ')
  assert len(repr(built)) < 200
  assert f'Algorithm {name}' in built._repr_html_()


def test_names_survive_options_of_programs():
  options = {'aggregator': 'krum', 'server_optimizer': 'adam'}
  built = registry.build('safl', proximal_mu=0.1, **options)
  assert built.name == 'safl'
  assert "server_optimizer(learning_rate=0.01, optimizer='adam'" in repr(built)
  assert built.settings['mu'] == 0.1


def test_other_rules_have_no_name():
  safl = safl_tf.build_safl()
  own = dataclasses.replace(safl, gate=safl_tf.gate.accuracy_gap(0.2))
  assert own.name == 'own'
  assert repr(own) == (
    'Algorithm(own: uniform(fraction=1.0), anneal(epsilon=0.3, '
    "granularity='element', temperature=80.0), accuracy_gap(nu=0.2), by_size())"
  )
  # A name is not a rule: runs of both are the same.
  assert algorithm_lib.describe(dataclasses.replace(safl)) == (
    algorithm_lib.describe(safl)
  )


def test_settings():
  built = safl_tf.build_extended_safl(nu=0.4, clients_per_round=3)
  assert built.settings == {
    'fraction': 1.0,
    'clients_per_round': 3,
    'epsilon': 0.3,
    'granularity': 'element',
    'temperature': 80.0,
    'nu': 0.4,
  }
  fed_ma = safl_tf.build_fed_ma('bbp', fedma_gamma=3.0)
  assert fed_ma.settings['gamma'] == 3.0
  assert 'FedMA(' in repr(fed_ma)


def test_texts_of_any_rules():
  def build(scale):
    loop = lambda t: loop(t) * scale
    return loop

  gate = safl_tf.named('mine', safl_tf.gate.always())
  safl = safl_tf.build_safl()
  own = dataclasses.replace(safl, mix=build(3), gate=gate, alone=True)
  assert "named 'mine 0'(), by_size(), alone)" in repr(own)
  assert own.settings['scale'] == 3
  assert repr(algorithm_lib.Algorithm(3, None, len, '<b>')) == (
    'Algorithm(own: int(), len(), str())'
  )
