"""Findings with error bars: the tables and figures of several seeds in docs/.

  python -m benchmarks.findings --list
  python -m benchmarks.findings --runs FOLDER [FOLDER ...]
  python -m benchmarks.findings

The first prints the commands that make the runs. The second adds the rounds of
finished runs to docs/data/findings.csv. Both others write, from that file
alone, the figures and the tables between `<!-- findings NAME -->` and
`<!-- /findings NAME -->`.
"""

import argparse
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from benchmarks import reports
from safl_tf.experiments.paper import experiments, figures, plans, tables
from safl_tf.experiments.paper import results as results_lib
from safl_tf.reporting import charts, plots
from safl_tf.reporting import tables as tables_lib
from safl_tf.training import metrics_log

SEEDS = (0, 1, 2)
ROOT = pathlib.Path(__file__).parent.parent
DATA = ROOT / 'docs' / 'data' / 'findings.csv'
_WHERE = '2026-11-19, two CPU cores (AMD EPYC), no GPU'
_COLUMNS = ('test_accuracy', 'test_loss', 'selected', 'uploaded', 'seconds')
_KEY = ['experiment', 'part', 'seed', 'round']


class Study(NamedTuple):
  """An experiment that was repeated.

  Attributes:
    page: the page that has its table.
    images: figure of the experiment -> image of docs/.
    parts: the parts that were run; all if empty.
    leads: whether a table has the leads over FedAvg.
  """

  page: str
  images: Mapping[str, str]
  parts: Sequence[str] = ()
  leads: bool = False


_REPRODUCTION = 'docs/reproduction.md'
STUDIES = {
  'convergence_mnist': Study(
    _REPRODUCTION,
    {'accuracy_n80': 'reproduction_mnist_n80'},
    ('fedavg_n80', 'safl_n80'),
    leads=True,
  ),
  'epsilon_temperature': Study(
    _REPRODUCTION,
    {'accuracy': 'reproduction_epsilon_temperature'},
    (
      'fedavg',
      *(f'safl_epsilon{e}_L{L}' for e in (0.3, 0.5, 0.7) for L in (10, 80)),
    ),
    leads=True,
  ),
  'fraction': Study(
    _REPRODUCTION,
    {
      'accuracy_R0.3': 'reproduction_R03',
      'accuracy_R0.7': 'reproduction_R07',
    },
    leads=True,
  ),
  'uploads': Study(
    _REPRODUCTION,
    {'uploads': 'reproduction_uploads'},
    ('fedavg', 'safl', 'extended_safl_nu0.5'),
    leads=True,
  ),
  'learning_rate': Study(
    _REPRODUCTION,
    {
      'accuracy_n50': 'reproduction_rate_n50',
      'accuracy_n100': 'reproduction_rate_n100',
    },
    (
      *(f'fedavg_n{n}_alpha{a}' for n in (50, 100) for a in (0.002, 0.0015)),
      *(f'safl_n{n}_alpha0.002' for n in (50, 100)),
    ),
  ),
  'biased_share': Study(
    _REPRODUCTION,
    {
      'accuracy_same': 'reproduction_biased_same',
      'accuracy_different': 'reproduction_biased_different',
    },
  ),
  'annealing': Study(
    'docs/choosing.md',
    {'accuracy_n_100_R_0.3': 'choosing_R03'},
    (
      *('fedavg_n80', 'safl_n80_L80'),
      *(
        name.format(setting)
        for setting in ('n50', 'R0.3', 'R0.5', 'R0.7')
        for name in ('fedavg_{}', 'safl_{}_L80', 'safl_{}_L10')
      ),
    ),
  ),
}
# Rows of the table `annealing` that the README has, too.
README_ROWS = (
  *('n = 50', 'n = 80'),
  *(f'n = 100, R = {R}' for R in (0.3, 0.5, 0.7)),
)


def command(name: str) -> str:
  """Returns the command that makes the runs of a study."""
  parts = STUDIES[name].parts
  seeds = ','.join(map(str, SEEDS))
  given = f' --parts={",".join(parts)}' if parts else ''
  return f'safl-reproduce --experiment={name} --seeds={seeds}{given}'


def collect(folder: pathlib.Path) -> Iterator[pd.DataFrame]:
  """Yields the rounds of the finished runs of a folder of safl-reproduce."""
  for name in STUDIES:
    for part in _parts(name):
      for seed in SEEDS:
        run = folder / f'{name}_cpu' / f'{part.name}_seed{seed}'
        path = run / 'metrics.csv'
        rows = metrics_log.read_csv(path) if path.is_file() else []
        if len(rows) >= part.rounds:
          key = {'experiment': name, 'part': part.name, 'seed': seed}
          yield pd.DataFrame(rows)[['round', *_COLUMNS]].assign(**key)


def merge(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
  """Returns the rounds of all frames; of equal runs those of the last."""
  frame = pd.concat(frames).drop_duplicates(_KEY, keep='last')
  return frame.sort_values(_KEY)[[*_KEY, *_COLUMNS]].round(6)


def results(name: str, frame: pd.DataFrame) -> results_lib.Results:
  """Returns the results of a study; equal runs of other studies count, too.

  Args:
    name: of the experiment.
    frame: what `merge` returned.
  """
  by_run = dict(list(frame.groupby(['experiment', 'part', 'seed'])))
  found = []
  for part in _parts(name):
    histories = []
    for seed in SEEDS:
      keys = [(study, equal.name, seed) for study, equal in _equal(part)]
      rows = next((by_run[key] for key in keys if key in by_run), None)
      if rows is not None:
        known = rows.astype(object).where(rows.notna(), None)
        histories.append(known.head(part.rounds).to_dict('records'))
    if histories:
      found.append(results_lib.Runs(part, histories))
  plan = experiments.EXPERIMENTS[name].plan('cpu')
  return results_lib.Results(
    plan._replace(parts=tuple(_parts(name))), SEEDS, found
  )


def _parts(name: str) -> list[plans.Part]:
  plan, wanted = experiments.EXPERIMENTS[name].plan('cpu'), STUDIES[name].parts
  return [part for part in plan.parts if not wanted or part.name in wanted]


def _equal(part: plans.Part) -> list[tuple[str, plans.Part]]:
  """Returns the parts of all studies whose runs have the rounds of a part."""

  def flags(of: plans.Part) -> dict[str, Any]:
    ignored = {'rounds'}
    if of.flags['algorithm'] == 'fedavg':
      ignored |= {'epsilon', 'temperature'}
    return {k: v for k, v in of.flags.items() if k not in ignored}

  return [
    (name, other)
    for name in STUDIES
    for other in _parts(name)
    if flags(other) == flags(part) and other.rounds >= part.rounds
  ]


def _markdown(table: pd.DataFrame) -> str:
  """Returns a table without rows of missing runs, and what all rows share."""
  table = table.drop(columns=['our round', 'size'], errors='ignore')
  is_empty = table.iloc[:, 1:].map(
    lambda cell: str(cell)[:2] in ('', '-', '- ')
  )
  table = table[~is_empty.all(axis=1)]
  last = 'last (%)'  # left out if it is the round before
  others = table.drop(columns=last, errors='ignore')
  if any(others[column].equals(table.get(last)) for column in others):
    table = others
  lines = [list(table.columns), *table.astype(str).to_numpy().tolist()]
  return tables_lib.to_markdown(lines)


def _note(found: results_lib.Results) -> str:
  """Returns the command, date, machine and seeds, and what is missing."""
  name = found.plan.experiment
  parts = {runs.part.name: len(runs.histories) for runs in found.runs}
  counts = set(parts.values())
  note = f'`{command(name)}`, {_WHERE}, mean ± sd of {max(counts)} seeds'
  fewer = [f'{p} ({k})' for p, k in parts.items() if k < max(counts)]
  missing = [p.name for p in found.plan.parts if p.name not in parts]
  if fewer:
    note += f'; fewer seeds: {", ".join(fewer)}'
  if missing:
    note += f'; not run: {", ".join(missing)}'
  return f'({note}.)'


def _tables(found: results_lib.Results) -> list[pd.DataFrame]:
  paper = results_lib.paper_numbers()[found.plan.experiment]
  return list(tables.tables(found, paper).values())


def leads(found: results_lib.Results) -> pd.DataFrame:
  """Returns the leads over FedAvg in points of the mean accuracy, if any."""
  keys = ('n', 'fraction')
  lines = []
  for runs in found.runs:
    place = {key: v for key, v in runs.part.cell.items() if key in keys}
    fedavg = found.get(algorithm='fedavg', **place)
    if fedavg is None or runs.algorithm == 'fedavg':
      continue
    lead = runs.lead(fedavg)
    last = lead.index[-1]
    point = {
      f'lead over FedAvg in round {last}': lead[last],
      'largest': lead.max(),
      'smallest': lead.min(),
    }
    line = {key: tables.format_points(value) for key, value in point.items()}
    line['largest'] += f' (round {lead.idxmax()})'
    line['smallest'] += f' (round {lead.idxmin()})'
    lines.append({'': results_lib.describe(runs.part.cell), **line})
  return pd.DataFrame(lines)


def section(found: results_lib.Results) -> str:
  """Returns the tables of a study as Markdown, and where they are from."""
  made = _tables(found)
  if STUDIES[found.plan.experiment].leads:
    made.append(leads(found))
  return '\n'.join([*map(_markdown, made), _note(found)])


def summary(frame: pd.DataFrame) -> str:
  """Returns the table of the README."""
  (table,) = _tables(results('annealing', frame))
  return _markdown(table[table[''].isin(README_ROWS)]).rstrip()


def write(frame: pd.DataFrame) -> None:
  """Writes the tables and the figures of all studies with runs."""
  for name, study in STUDIES.items():
    found = results(name, frame)
    if not found.runs:
      continue
    reports.write(ROOT / study.page, f'findings {name}', section(found))
    drawn = figures.figures(found, results_lib.paper_numbers()[name])
    for figure, image in study.images.items():
      paths = plots.paths(ROOT / 'docs/images', image, ('png', 'dark.png'))
      charts.chart(drawn[figure], paths)
  reports.write(ROOT / 'README.md', 'findings', summary(frame))


def main() -> None:
  """Runs the program."""
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--list', action='store_true', help='print the commands')
  parser.add_argument(
    '--runs',
    type=pathlib.Path,
    nargs='+',
    default=[],
    help='add the finished runs of these folders of safl-reproduce',
  )
  given = parser.parse_args()
  if given.list:
    print('\n'.join(map(command, STUDIES)))
    return
  known = [pd.read_csv(DATA)] if DATA.is_file() else []
  frame = merge([*known, *(run for at in given.runs for run in collect(at))])
  DATA.parent.mkdir(exist_ok=True)
  frame.to_csv(DATA, index=False, lineterminator='\n')
  write(frame)


if __name__ == '__main__':
  main()
