"""Trains with several algorithms and seeds and compares them in one table.

Runs with the same seed share clients, data, initial models and selections. All
flags of safl-train except --algorithm and --seed have the same meaning here.

  safl-compare --algorithms=fedavg,safl --seeds=0,1,2 --rounds=50
  safl-compare --preset=mnist_n80 --experiment=n80

OUTPUT_DIR/EXPERIMENT has comparison.html, comparison.md, comparison.csv (a row
per algorithm), runs.csv (a row per run), plots/, all rewritten after each run,
and the folders ALGORITHM_seedSEED of the runs. The same command resumes; with
more algorithms or seeds it trains only the new runs.
"""

import contextlib
import dataclasses
import functools
import os
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from absl import flags as absl_flags
from absl import logging

from safl_tf.util import choices, errors, hardware, output_folder, validation

from . import program
from . import runs as runs_lib
from .flags import group
from .flags.run_config import RunConfig

if TYPE_CHECKING:
  from safl_tf.data import dataset as dataset_lib

_NOTES = (
  'Accuracies are on the test data; the accuracy at a round is that of the '
  'latest evaluation. ± is the sample standard deviation over seeds. Rounds '
  'and megabytes to the target are means over the seeds that reached it. A '
  'megabyte is 1,000,000 bytes. Seconds are those in rounds, including '
  'compilation.'
)
_VARIED = ('algorithm', 'seed')  # flags that differ between runs


@dataclasses.dataclass(frozen=True)
class _Comparison(group.Group, topic='comparison'):
  algorithms: str = group.text(
    'fedavg,safl,extended_safl',
    'The federated algorithms, separated by commas. Any of '
    f'{", ".join(choices.ALGORITHMS)}.',
  )
  seeds: str = group.text('0', 'Seeds of all random draws, comma-separated.')
  at_rounds: str | None = group.text(
    None,
    'Rounds to report the accuracy at, separated by commas; a quarter, half '
    'and three quarters of the rounds if not given.',
  )
  target_accuracy: float = group.real(
    0.9, 'Test accuracy to which rounds and megabytes are counted.'
  )


class Comparison(NamedTuple):
  """The runs of a comparison.

  Attributes:
    runs: in the order of training.
    flags: what they share; each run has only those that it uses.
  """

  runs: list[RunConfig]
  flags: RunConfig


def comparison_of(flags: absl_flags.FlagValues) -> Comparison:
  """Returns the comparison that the flags describe."""
  algorithms = group.parse_list(
    'algorithms',
    flags.algorithms,
    lambda name: validation.choice('algorithms', name, choices.ALGORITHMS),
  )
  seeds = group.parse_integers('seeds', flags.seeds, 0, validation.MAX_SEED)
  config = RunConfig.read(flags, algorithm=algorithms[0], seed=seeds[0])
  names = {'algorithm': 'algorithms'}
  config.check_effects(flags, names, algorithm=algorithms)
  config = config.resolve_data()
  resolved = config.resolve()
  name = resolved.experiment
  if flags.experiment is None:
    name = f'compare{name.removeprefix(algorithms[0])}'
  folder = os.path.join(resolved.output_dir, name)
  config = dataclasses.replace(config, output_dir=folder)
  runs = [_vary(config, a, seed) for seed in seeds for a in algorithms]
  return Comparison(runs, config)


def _vary(config: RunConfig, algorithm: str, seed: int) -> RunConfig:
  """Returns a run, with defaults for flags that it does not use."""
  name = f'{algorithm}_seed{seed}'
  return dataclasses.replace(
    config, algorithm=algorithm, seed=seed, experiment=name
  ).resolve()


def at_rounds_of(flags: absl_flags.FlagValues, rounds: int) -> Sequence[int]:
  """Returns the rounds to report the accuracy at."""
  from safl_tf.reporting import tables

  if flags.at_rounds is None:
    return tables.quarters(rounds)
  return sorted(group.parse_integers('at_rounds', flags.at_rounds, 1, rounds))


def main(flags: absl_flags.FlagValues) -> None:
  """Trains the missing runs; writes the table and the page."""
  runs, shared = comparison_of(flags)
  at_rounds = at_rounds_of(flags, runs[0].rounds)
  path = runs[0].path.parent
  _check_folders(path, runs, shared)
  missing = [run for run in runs if not runs_lib.is_complete(run)]
  write = lambda: _write(path, runs, at_rounds, flags.target_accuracy)
  failures: list[str] = []
  table = ''
  with contextlib.ExitStack() as stack:
    if missing:
      hardware.start_tensorflow()
      stack.enter_context(runs_lib.shared_workers(shared))
      dataset = _load(missing)
      runs_lib.check_data(runs, dataset)
    else:
      logging.info('all %d runs are finished', len(runs))
    stack.enter_context(output_folder.opened(path, 'comparison', 'experiment'))
    for run in missing:
      position = f'run {runs.index(run) + 1} of {len(runs)}'
      logging.info('%s: %s, seed %d', position, run.algorithm, run.seed)
      failures += filter(None, [runs_lib.run(run, dataset)])
      table = write()
    print(table or write())
  print(f'page  {path / "comparison.html"}')
  if failures:
    raise errors.RunError('; '.join(failures))


def _check_folders(
  path: pathlib.Path, runs: Sequence[RunConfig], shared: RunConfig
) -> None:
  """Refuses a folder that others own or that has runs with other flags."""
  from safl_tf.training import hparams as hparams_lib
  from safl_tf.training import run_directory

  output_folder.check(path, 'comparison', 'experiment')
  for run in runs:
    run.directory().check()
  for folder in sorted(path.glob('*_seed*')):
    other = (hparams_lib.read(folder) or {}).get('flags') or {}
    if other.keys() >= set(_VARIED):
      run = _vary(shared, other['algorithm'], other['seed'])
      values = run.to_dict()
      del values['rounds']  # runs that are not compared may have more rounds
      run_directory.RunDirectory(
        run.path, values, argument='experiment'
      ).check()


def _load(missing: Sequence[RunConfig]) -> 'dataset_lib.Dataset':
  """Loads the data of the runs that are not finished.

  Builds each algorithm once to refuse bad input before anything is written.
  """
  from . import factories

  dataset = missing[0].load()
  for run in {run.algorithm: run for run in missing}.values():
    factories.build_process(run, dataset)
  return dataset


def _write(
  path: pathlib.Path,
  runs: Sequence[RunConfig],
  at_rounds: Sequence[int],
  target: float,
) -> str:
  """Writes all files of a comparison; returns the table as Markdown."""
  from safl_tf.reporting import html, plots, tables
  from safl_tf.util import atomic_io

  algorithms = list(dict.fromkeys(run.algorithm for run in runs))
  finished = [
    tables.Run(run.algorithm, run.seed, history)
    for run in sorted(runs, key=lambda run: algorithms.index(run.algorithm))
    if (history := runs_lib.history(run)) is not None
  ]
  rows = tables.run_rows(finished, at_rounds, target)
  averaged = tables.algorithm_rows(rows)
  lines = tables.table(averaged)
  table = tables.to_markdown(lines)
  charts = plots.comparison_charts(finished)
  description = _describe(runs, len(finished))
  used = {
    name: value
    for run in runs
    for name, value in run.to_dict().items()
    if name not in (*_VARIED, 'experiment', 'output_dir', *run.unused())
  }
  settings = dict(sorted(used.items()))
  body = [
    *map(html.paragraph, description),
    html.table(lines, keys=True),
    html.note(_NOTES),
    html.charts(map(html.line_chart, charts.values())),
    html.settings('All settings', settings),
  ]
  introduction = '\n\n'.join([f'# {path.name}', *description])
  for name, text in {
    'runs.csv': tables.to_csv(rows),
    'comparison.csv': tables.to_csv(averaged),
    'comparison.md': f'{introduction}\n\n{table}\n{_NOTES}\n',
    'comparison.html': html.page(path.name, body),
  }.items():
    atomic_io.write_text(path / name, text)
  (path / 'plots').mkdir(exist_ok=True)
  for name, chart in charts.items():
    plots.chart(chart, path / 'plots' / f'{name}.png')
  return table


def _describe(runs: Sequence[RunConfig], finished: int) -> list[str]:
  """Describes the comparison and its progress, in a sentence each."""
  config, seeds = runs[0], list(dict.fromkeys(str(run.seed) for run in runs))
  clients = f'{config.num_clients} clients, ' if config.num_clients else ''
  word = 'seeds' if len(seeds) > 1 else 'seed'
  sentences = [
    f'{pathlib.Path(config.model).stem} on {config.dataset}, {clients}'
    f'{config.rounds} rounds, {word} {", ".join(seeds)}.'
  ]
  if finished < len(runs):
    sentences.append(f'So far, {finished} of {len(runs)} runs are finished.')
  return sentences


def define(flags: absl_flags.FlagValues) -> None:
  """Adds the flags of safl-compare."""
  _Comparison.define(flags)
  RunConfig.define(flags, omit=_VARIED)
  flags.set_default('export', 'none')
  experiment = flags['experiment']
  experiment.help = 'Name of the comparison; compare_DATASET if not given.'


cli = functools.partial(program.run, 'safl-compare', __doc__, define, main)

if __name__ == '__main__':
  cli()
