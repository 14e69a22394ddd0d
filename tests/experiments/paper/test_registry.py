"""What all experiments come to, with hand-made histories."""

import copy

import pytest

from safl_tf.experiments.paper import claims, experiments, registry
from tests.experiments.paper import make_runs as made


def leaves(tree, path=()):
  """The paths of all numbers in a tree of dicts and lists."""
  if isinstance(tree, dict):
    for key, value in tree.items():
      yield from leaves(value, (*path, key))
  elif isinstance(tree, list):
    for i, value in enumerate(tree):
      yield from leaves(value, (*path, i))
  elif isinstance(tree, (bool, int, float)):
    yield path


@pytest.fixture(scope='module')
def outcomes():
  """Of all experiments, complete."""
  return {
    name: registry.find(made.complete(name)) for name in experiments.EXPERIMENTS
  }


@pytest.mark.parametrize(
  'path',
  list(leaves(registry.paper_numbers())),
  ids=lambda path: '-'.join(map(str, path)),
)
def test_every_number_of_the_paper_is_used(path, outcomes):
  """Another number would give another outcome."""
  numbers = copy.deepcopy(registry.paper_numbers())
  inner = numbers
  for key in path[:-1]:
    inner = inner[key]
  last = inner[path[-1]]
  inner[path[-1]] = (not last) if isinstance(last, bool) else last * 1.25
  if path[-1] in ('round', 'better', 'worse', 'n'):
    inner[path[-1]] = {56: 57, 35: 3, 70: 10, 50: 100, 200: 150}.get(
      last, last // 2
    )
  results = made.complete(path[0])
  assert registry.find(results, numbers) != outcomes[path[0]]


def test_every_sentence_of_the_paper_is_there():
  for name, numbers in registry.paper_numbers().items():
    assert numbers['source']
    assert all(claim['says'] for claim in numbers.get('claims', ()))
    assert name == 'sensitivity' or numbers['claims']


@pytest.mark.parametrize('scale', ['paper', 'cpu', 'smoke'])
@pytest.mark.parametrize('name', experiments.EXPERIMENTS)
def test_nothing_is_finished_or_everything(name, scale):
  empty = registry.find(made.results(name, scale=scale))
  assert made.of(empty, claims.AGREES) == made.of(empty, claims.DIFFERS) == []
  whole = registry.find(made.complete(name, scale, seeds=(0, 1)))
  assert made.of(whole, claims.AGREES) or name == 'sensitivity'
  cells = [line[1] for table in whole.tables for line in table.lines[1:]]
  assert '-' not in cells
  assert all(c.x for chart in whole.charts.values() for c in chart.curves)
  for table in (*empty.tables, *whole.tables):
    assert len({len(line) for line in table.lines}) == 1
