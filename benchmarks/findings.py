"""Findings with error bars: the tables and figures of several seeds in docs/.

  python -m benchmarks.findings --list
  python -m benchmarks.findings --runs=runs
  python -m benchmarks.findings

The first prints the commands that make the runs, the second collects their
rounds in docs/data/findings.csv. The last writes the tables between
`<!-- findings NAME -->` and `<!-- /findings NAME -->` in docs/, and the
figures, from that file alone.
"""

import argparse
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pandas as pd

from benchmarks import reports
from safl_tf.experiments.paper import experiments, figures, plans, tables
from safl_tf.experiments.paper import results as results_lib
from safl_tf.reporting import charts, plots
from safl_tf.reporting import tables as tables_lib
from safl_tf.training import metrics_log

SEEDS = (0, 1, 2)
DOCS = pathlib.Path(__file__).parent.parent / 'docs'
DATA = DOCS / 'data' / 'findings.csv'
_WHERE = '2026-11-19, two CPU cores (AMD EPYC), no GPU'
_COLUMNS = ('test_accuracy', 'test_loss', 'selected', 'uploaded', 'seconds')


class Study(NamedTuple):
  """An experiment that was repeated.

  Attributes:
    page: of docs/ that has its table.
    images: figure of the experiment -> image of docs/.
    parts: the parts that were run; all if empty.
  """

  page: str
  images: Mapping[str, str]
  parts: tuple[str, ...] = ()


_SAFL = tuple(
  f'safl_epsilon{e}_L{L}' for e in (0.3, 0.5, 0.7) for L in (10, 80)
)
STUDIES = {
  'convergence_mnist': Study(
    'reproduction.md',
    {'accuracy_n80': 'reproduction_mnist_n80'},
    ('fedavg_n80', 'safl_n80'),
  ),
  'epsilon_temperature': Study(
    'reproduction.md',
    {'accuracy': 'reproduction_epsilon_temperature'},
    ('fedavg', *_SAFL),
  ),
  'fraction': Study(
    'reproduction.md',
    {
      'accuracy_R0.3': 'reproduction_R03',
      'accuracy_R0.7': 'reproduction_R07',
    },
  ),
  'uploads': Study(
    'reproduction.md',
    {'uploads': 'reproduction_uploads'},
    ('fedavg', 'safl', 'extended_safl_nu0.5'),
  ),
  'learning_rate': Study(
    'reproduction.md',
    {
      'accuracy_n50': 'reproduction_rate_n50',
      'accuracy_n80': 'reproduction_rate_n80',
      'accuracy_n100': 'reproduction_rate_n100',
    },
  ),
  'biased_share': Study(
    'reproduction.md',
    {
      'accuracy_same': 'reproduction_biased_same',
      'accuracy_different': 'reproduction_biased_different',
    },
  ),
}


def command(name: str) -> str:
  """Returns the command that makes the runs of a study."""
  parts = STUDIES[name].parts
  seeds = ','.join(map(str, SEEDS))
  given = f' --parts={",".join(parts)}' if parts else ''
  return f'safl-reproduce --experiment={name} --seeds={seeds}{given}'


def collect(runs: pathlib.Path) -> pd.DataFrame:
  """Returns the rounds of all finished runs of a folder of safl-reproduce.

  Args:
    runs: the folder, with a folder per experiment.

  Returns:
    A row per run and round. A run that serves several experiments is there
    once, under the first that has its folder.
  """
  frames = []
  for name, part, seed in _runs():
    path = runs / f'{name}_cpu' / f'{part.name}_seed{seed}' / 'metrics.csv'
    if path.is_file():
      rows = metrics_log.read_csv(path)
      if len(rows) >= part.rounds:
        frame = pd.DataFrame(rows)[['round', *_COLUMNS]]
        frame.insert(0, 'seed', seed)
        frame.insert(0, 'part', part.name)
        frame.insert(0, 'experiment', name)
        frames.append(frame)
  return pd.concat(frames, ignore_index=True)


def results(name: str, frame: pd.DataFrame) -> results_lib.Results:
  """Returns the results of a study.

  Args:
    name: of the experiment.
    frame: what `collect` returned.
  """
  plan = experiments.EXPERIMENTS[name].plan('cpu')
  by_run = dict(list(frame.groupby(['experiment', 'part', 'seed'])))
  found = []
  for part in _parts(name):
    histories = []
    for seed in SEEDS:
      places = [(e, p.name, seed) for e, p in _equal(part)]
      rows = next((by_run[at] for at in places if at in by_run), None)
      if rows is not None and len(rows) >= part.rounds:
        known = rows.astype(object).where(rows.notna(), None)
        histories.append(known.head(part.rounds).to_dict('records'))
    if histories:
      found.append(results_lib.Runs(part, histories))
  wanted = plan._replace(parts=tuple(_parts(name)))
  return results_lib.Results(wanted, SEEDS, found)


def _parts(name: str) -> list[plans.Part]:
  plan, wanted = experiments.EXPERIMENTS[name].plan('cpu'), STUDIES[name].parts
  return [part for part in plan.parts if not wanted or part.name in wanted]


def _runs() -> Iterator[tuple[str, plans.Part, int]]:
  for name in STUDIES:
    for part in _parts(name):
      for seed in SEEDS:
        yield name, part, seed


def _equal(part: plans.Part) -> list[tuple[str, plans.Part]]:
  """Returns the parts of all studies that have the rounds of a part."""

  def flags(of: plans.Part) -> dict[str, Any]:
    return {name: v for name, v in of.flags.items() if name != 'rounds'}

  return [
    (name, other)
    for name in STUDIES
    for other in _parts(name)
    if flags(other) == {**flags(part)} and other.rounds >= part.rounds
  ]


def section(name: str, frame: pd.DataFrame) -> str:
  """Returns the tables of a study as Markdown, with the command and seeds."""
  found = results(name, frame)
  paper = results_lib.paper_numbers()[name]
  texts = []
  for table in tables.tables(found, paper).values():
    lines = [list(table.columns), *table.astype(str).to_numpy().tolist()]
    texts.append(tables_lib.to_markdown(lines))
  seeds = {len(runs.histories) for runs in found.runs}
  fewer = [
    f'{runs.part.name} ({len(runs.histories)})'
    for runs in found.runs
    if len(runs.histories) < len(SEEDS)
  ]
  note = f'`{command(name)}`, {_WHERE}, mean ± sd of {max(seeds)} seeds'
  if fewer:
    note += f'; fewer seeds so far: {", ".join(fewer)}'
  missing = [p.name for p in _parts(name) if not found.get(**p.cell)]
  if missing:
    note += f'; not run yet: {", ".join(missing)}'
  return '\n'.join([*texts, f'({note}.)'])


def write(frame: pd.DataFrame) -> None:
  """Writes the tables and the figures of all studies with runs."""
  for name, study in STUDIES.items():
    found = results(name, frame)
    if not found.runs:
      continue
    text = section(name, frame)
    reports.write(DOCS / study.page, f'findings {name}', text)
    paper = results_lib.paper_numbers()[name]
    drawn = figures.figures(found, paper)
    for figure, image in study.images.items():
      if any(curve.x for curve in drawn[figure].curves):
        paths = plots.paths(DOCS / 'images', image, ('png', 'dark.png'))
        charts.chart(drawn[figure], paths)


def main() -> None:
  """Runs the program."""
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--list', action='store_true', help='print the commands')
  parser.add_argument('--runs', type=pathlib.Path, help='collect these runs')
  given = parser.parse_args()
  if given.list:
    print('\n'.join(map(command, STUDIES)))
    return
  if given.runs:
    DATA.parent.mkdir(exist_ok=True)
    frame = collect(given.runs)
    frame.to_csv(DATA, index=False, lineterminator='\n')
  write(pd.read_csv(DATA))


if __name__ == '__main__':
  main()
