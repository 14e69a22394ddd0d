import pandas as pd
import pytest

from benchmarks import findings
from safl_tf.experiments.paper import experiments

# All of this is text; figures are drawn by `python -m benchmarks.findings`.


@pytest.fixture(scope='module')
def frame():
  return pd.read_csv(findings.DATA)


@pytest.mark.parametrize('name', findings.STUDIES)
def test_pages_have_the_tables_of_the_data(name, frame):
  page = (findings.ROOT / findings.STUDIES[name].page).read_text('utf-8')
  begin, end = (f'<!-- {mark}findings {name} -->' for mark in ('', '/'))
  text = findings.section(findings.results(name, frame))
  assert f'{begin}\n{text}\n{end}' in page


def test_readme_has_the_table_of_the_data(frame):
  readme = (findings.ROOT / 'README.md').read_text('utf-8')
  assert findings.summary(frame) in readme
  assert all(f'| {row} ' in readme for row in findings.README_ROWS)


@pytest.mark.parametrize('name', findings.STUDIES)
def test_images_are_there_and_shown(name):
  study = findings.STUDIES[name]
  page = (findings.ROOT / study.page).read_text('utf-8')
  for image in study.images.values():
    assert f'images/{image}.png)' in page
    for suffix in ('png', 'dark.png'):
      assert (findings.ROOT / f'docs/images/{image}.{suffix}').is_file()


@pytest.mark.parametrize('name', findings.STUDIES)
def test_commands_name_parts_of_the_experiment(name):
  parts = {
    part.name for part in experiments.EXPERIMENTS[name].plan('cpu').parts
  }
  assert parts >= set(findings.STUDIES[name].parts)


def test_the_preset_recommended_is_better_in_every_setting(frame):
  pairs = []
  for name in ('annealing', 'biased_share'):
    found = findings.results(name, frame)
    for short in found.where(algorithm='safl', temperature=10):
      cell = {**short.part.cell, 'temperature': 80}
      (long,) = [r for r in found.runs if r.part.cell == cell]
      pairs.append((short.at(None).mean, long.at(None).mean))
  assert len(pairs) >= 11
  assert all(short > long for short, long in pairs)


def rows(experiment, part, seed, accuracies):
  columns = dict.fromkeys(findings._COLUMNS, 1.0)
  return pd.DataFrame(
    {**columns, 'round': t + 1, 'test_accuracy': accuracy}
    for t, accuracy in enumerate(accuracies)
  ).assign(experiment=experiment, part=part, seed=seed)


def test_merge_keeps_the_last_of_equal_runs():
  old = rows('uploads', 'safl', 0, [0.1, 0.2])
  other = rows('uploads', 'safl', 1, [0.3])
  merged = findings.merge([old, other, rows('uploads', 'safl', 0, [0.5, 0.6])])
  assert merged['test_accuracy'].tolist() == [0.5, 0.6, 0.3]


def test_equal_runs_of_other_studies_count():
  """The first 50 of 80 rounds of half of 100 clients are those of R = 0.5."""
  longer = rows('uploads', 'safl', 0, [0.5] * 49 + [0.9] * 31)
  found = findings.results('fraction', findings.merge([longer]))
  [runs] = found.runs
  assert runs.part.cell == {
    'algorithm': 'safl',
    'fraction': 0.5,
    'temperature': 80,
  }
  assert (runs.last, runs.at(None).mean) == (50, 0.9)
  shorter = rows('fraction', 'safl_R0.5', 0, [0.5] * 50)
  assert not findings.results('uploads', findings.merge([shorter])).runs
