"""safl-compare: see `binaries.compare_flags`."""

import pathlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from absl import logging

from binaries import common, compare_flags, running, train

if TYPE_CHECKING:
  from safl_tf.reporting import tables

_NOTES = (
  'Accuracies are on the test data; at a round it is the last evaluation up to '
  'there. ± is the sample standard deviation over seeds. Rounds and megabytes '
  'until the target are means over the seeds that reached it. A megabyte is '
  '1,000,000 bytes. Seconds are those in rounds, compilation included.'
)
_PLACES = {'output_dir'}  # no setting: results are the same elsewhere


def main() -> None:
  """Flags -> runs that aren't there yet -> one table and one page."""
  plan = compare_flags.plan()
  _check_folders(plan)
  left = [
    run for run in plan.runs if not running.is_complete(plan.values(*run))
  ]
  failures, table = [], ''
  for failure in _train_all(plan, left):
    failures += [failure] if failure else []
    table = _write(plan)
  print(table or _write(plan))
  print(f'page  {plan.path / "comparison.html"}')
  if failures:
    raise common.ExitError('; '.join(failures))


def _check_folders(plan: compare_flags.Plan) -> None:
  """Refuses a folder that isn't a comparison's, or was made by other flags."""
  from safl_tf.training import metrics_log
  from safl_tf.util import errors

  if metrics_log.read_hparams(plan.path) is not None:
    raise errors.InputError(
      'experiment', plan.path, 'is the folder of a run; choose another name'
    )
  for run in plan.runs:
    train.folder_of(plan.values(*run)).check()
  for path in sorted(plan.path.glob('*_seed*')):
    hparams = metrics_log.read_hparams(path) or {'flags': {}}
    run = (hparams['flags'].get('algorithm'), hparams['flags'].get('seed'))
    if run not in plan.runs and None not in run:
      values = plan.values(*run)
      del values['rounds']  # of runs that aren't asked for there may be more
      train.folder_of(values).check()


def _train_all(
  plan: compare_flags.Plan, left: Sequence[tuple[str, int]]
) -> Iterator[str | None]:
  """Trains what is left; after each run, what went wrong with its export."""
  if not left:
    logging.info('all %d runs were finished already', len(plan.runs))
    return
  common.start_tensorflow()
  from binaries import building
  from safl_tf.util import atomic_io

  # One run of each algorithm is built, so that what doesn't fit the model or
  # the data is told before anything is written. No data depend on the seed.
  dataset = None
  for run in dict(left).items():
    _, dataset = building.process_and_data(plan.values(*run), dataset)
  with atomic_io.run_lock(plan.path):
    for number, run in enumerate(plan.runs, start=1):
      if run in left:
        logging.info('run %d of %d: %s, seed %d', number, len(plan.runs), *run)
        assert dataset is not None  # as something is left
        yield running.run(plan.values(*run), dataset)


def _write(plan: compare_flags.Plan) -> str:
  """Writes all files of a comparison; returns the table as Markdown."""
  from safl_tf.reporting import html, plots, tables
  from safl_tf.util import atomic_io

  runs = _finished(plan)
  rows = tables.run_rows(runs, plan.at_rounds, plan.target)
  averaged = tables.algorithm_rows(rows)
  lines = tables.table(averaged)
  table = tables.to_markdown(lines)
  charts = plots.comparison_charts(runs)
  title, about = plan.path.name, _about(plan, len(runs))
  settings = {k: plan.common[k] for k in sorted(plan.common.keys() - _PLACES)}
  parts = [
    *map(html.paragraph, about),
    html.table(lines, keys=True),
    html.note(_NOTES),
    html.charts(map(html.line_chart, charts.values())),
    html.settings('All settings', settings),
  ]
  intro = '\n\n'.join([f'# {title}', *about])
  for name, text in {
    'runs.csv': tables.to_csv(rows),
    'comparison.csv': tables.to_csv(averaged),
    'comparison.md': f'{intro}\n\n{table}\n{_NOTES}\n',
    'comparison.html': html.page(title, parts),
  }.items():
    atomic_io.write_text(plan.path / name, text)
  (plan.path / 'plots').mkdir(exist_ok=True)
  for name, chart in charts.items():
    plots.chart(chart, plan.path / 'plots' / f'{name}.png')
  return table


def _finished(plan: compare_flags.Plan) -> list['tables.Run']:
  """The runs that can be compared, by algorithm and seed as in the flags."""
  from safl_tf.reporting import tables

  runs = [(name, seed) for name in plan.algorithms for seed in plan.seeds]
  histories = [running.history(plan.values(*run)) for run in runs]
  return [
    tables.Run(*run, history)
    for run, history in zip(runs, histories, strict=True)
    if history is not None
  ]


def _about(plan: compare_flags.Plan, finished: int) -> list[str]:
  """What was run and what of it is there, in a sentence or two."""
  values, seeds = plan.common, ', '.join(map(str, plan.seeds))
  clients = values['num_clients']
  told = [
    f'{pathlib.Path(values["model"]).stem} on {values["dataset"]}',
    *([] if clients is None else [f'{clients} clients']),
    f'{values["rounds"]} rounds',
    f'seeds {seeds}' if len(plan.seeds) > 1 else f'seed {seeds}',
  ]
  about = f'{", ".join(told)}.'
  if finished == len(plan.runs):
    return [about]
  return [about, f'So far, {finished} of {len(plan.runs)} runs are finished.']


def cli() -> None:
  """The console script."""
  common.run('safl-compare', compare_flags, main)


if __name__ == '__main__':
  cli()
