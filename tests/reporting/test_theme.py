import matplotlib as mpl
import pytest

from safl_tf.reporting import names, theme
from safl_tf.util import choices


def test_all_algorithms_have_a_name_and_colours_of_their_own():
  known = {*choices.ALGORITHMS}
  assert known < set(names.ALGORITHMS) and known < set(theme.LIGHT)
  for colors in (theme.LIGHT, theme.DARK):
    assert len({colors[name] for name in known}) == len(known)
  assert set(theme.LIGHT) == set(theme.DARK)
  assert set(names.DATASETS) == set(choices.DATASETS)
  assert set(names.MODELS) == set(choices.MODELS)


def test_looks_of_one_algorithm_are_tints_with_different_dashes():
  looks = theme.looks(['safl', 'fedavg', 'safl', 'safl'])
  assert looks[1] == theme.look('fedavg')
  mine = [looks[0], *looks[2:]]
  assert {look.color for look in mine} == {'safl'}
  assert [look.tint for look in mine] == pytest.approx([0, 0.275, 0.55])
  assert len({look.dashes for look in mine}) == 3


@pytest.mark.parametrize('count', [1, 3, 6, 24])
def test_looks_without_algorithm_differ(count):
  assert len(set(theme.looks([None] * count))) == count
  own = [f'my rule {i}' for i in range(count)]
  assert len(set(theme.looks(own))) == count


def test_a_tint_mixes_in_the_paper():
  with mpl.rc_context(theme.rc_params(dark=False)):
    assert theme.look('safl').hex() == theme.LIGHT['safl'].lower()
    assert theme.Look('centralized', 1.0).hex() == '#ffffff'
    assert theme.Look('centralized', 0.5).hex() == '#909090'
  with mpl.rc_context(theme.rc_params(dark=True)):
    assert theme.look('safl').hex() == theme.DARK['safl'].lower()


@pytest.mark.parametrize(
  'values, text',
  [
    ({'algorithm': 'safl'}, 'SAFL'),
    ({'epsilon': 0.3, 'temperature': 10.0}, 'ε = 0.3, L = 10'),
    ({'init': 'shared', 'nu': None, 'trim': True}, 'init shared, trim true'),
    ({'algorithm': 'mine', 'aggregator': 'krum'}, 'mine, aggregator krum'),
    ({'nu': None}, 'all'),
  ],
)
def test_names_of_settings(values, text):
  assert names.setting(values) == text


def test_subtitles():
  flags = {'model': 'lenet5', 'dataset': 'mnist', 'num_clients': 100}
  assert names.subtitle(flags) == 'LeNet-5 on MNIST, n = 100'
  assert names.subtitle({'epsilon': 0.3, 'fraction': 1.0}) == 'ε = 0.3'
  more = {**flags, 'fraction': 0.5, 'nu': 0.5, 'seed': 3}
  assert names.subtitle(more) == 'LeNet-5 on MNIST, n = 100, R = 0.5, ν = 0.5'
  assert names.subtitle({}) == ''
