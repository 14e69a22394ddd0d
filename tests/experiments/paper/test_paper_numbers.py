import copy

import pytest

from safl_tf.experiments.paper import claims, experiments
from safl_tf.experiments.paper import results as results_lib
from tests.experiments.paper import make_runs as made


def leaves(tree, path=()):
  """The paths of all numbers in a tree of dicts and lists."""
  if isinstance(tree, (dict, list)):
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, value in items:
      yield from leaves(value, (*path, key))
  elif isinstance(tree, (int, float)):
    yield path


@pytest.mark.parametrize('name', experiments.EXPERIMENTS)
def test_every_number_of_a_claim_is_used(name):
  """Another number gives another row."""
  paper = results_lib.paper_numbers()[name]
  result = made.complete(name)

  def rows_of(claim):
    needed = 'best' in claim or name == 'uploads'
    numbers = paper['numbers'] if needed else []
    own = {**paper, 'numbers': numbers, 'claims': [claim]}
    return claims.claims(result, own).to_dict('records')

  for claim in paper['claims']:
    for *keys, last in leaves(claim):
      changed = copy.deepcopy(claim)
      inner = changed
      for key in keys:
        inner = inner[key]
      inner[last] += 1 if inner[last] > 1 else 0.05
      assert rows_of(changed) != rows_of(claim), (claim, last)


def test_leads_of_the_paper_are_those_of_its_tables():
  numbers = results_lib.paper_numbers()

  def accuracy(experiment, **cell):
    (entry,) = [
      entry
      for entry in numbers[experiment]['numbers']
      if all(entry.get(key) == value for key, value in cell.items())
    ]
    return entry['accuracy']

  table4 = accuracy('epsilon_temperature', epsilon=0.3, temperature=80)
  table4 -= accuracy('epsilon_temperature', algorithm='fedavg')
  table3 = accuracy('early_accuracy', algorithm='safl', dataset='mnist')
  table3 -= accuracy('early_accuracy', algorithm='fedavg', dataset='mnist')
  leads = numbers['sensitivity']['leads']
  assert leads == pytest.approx({'50': table4, '80': table3})


def test_statements_without_a_quote_are_those_of_the_tables():
  """They are relations between the paper's own numbers."""
  for name, numbers in results_lib.paper_numbers().items():
    assert numbers['source']
    own = [claim for claim in numbers['claims'] if 'says' not in claim]
    for claim in own:
      entries = {}
      for side in ({}, claim['minus']):
        cell = {**claim, **side}
        (entries[bool(side)],) = [
          entry['accuracy']
          for entry in numbers['numbers']
          if entry['algorithm'] == cell['algorithm']
          and all(
            cell.get(k, v) == v
            for k, v in entry.items()
            if k
            in (
              'round',
              'dataset',
              'size',
              'batch_size',
              'epsilon',
              'temperature',
            )
          )
        ]
      assert entries[False] > entries[True], (name, claim)
