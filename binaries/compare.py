"""Trains with several algorithms and seeds and compares them in one table.

Runs with the same seed share clients, data, initial models and selections. All
flags of safl-train except --algorithm and --seed have the same meaning here.

  safl-compare --algorithms=fedavg,safl --seeds=0,1,2 --rounds=50
  safl-compare --preset=mnist_n80 --experiment=n80

  safl-compare --runs='runs/*'

OUTPUT_DIR/EXPERIMENT has comparison.html, comparison.md, comparison.tex,
comparison.csv (a row per algorithm), runs.csv (a row per run), plots/, all
rewritten while runs finish, and the folders ALGORITHM_seedSEED of the runs. The
same command resumes; with more algorithms or seeds it trains only the new runs.
With --runs it trains nothing and compares the runs that there are.
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

from . import program, saved_runs
from . import runs as runs_lib
from .flags import group, report
from .flags.run_config import RunConfig

if TYPE_CHECKING:
  from safl_tf.data import dataset as dataset_lib

_VARIED = ('algorithm', 'seed')  # flags that differ between runs
_WITH_RUNS = (  # flags that have an effect on runs that there are
  'runs',
  'at_rounds',
  'target_accuracy',
  'output_dir',
  'experiment',
  'figures',
  'verbosity',
)


@dataclasses.dataclass(frozen=True)
class _Comparison(group.Group, topic='comparison'):
  algorithms: str = group.text(
    'fedavg,safl,extended_safl',
    'The federated algorithms, separated by commas. Any of '
    f'{", ".join(choices.ALGORITHMS)}.',
  )
  seeds: str = group.text('0', 'Seeds of all random draws, comma-separated.')
  runs: str | None = group.text(
    None,
    'Folders of runs to compare in place of training, separated by commas; * '
    'stands for any text. Runs that differ only in their seed are averaged.',
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


def main(flags: absl_flags.FlagValues) -> None:
  """Trains the missing runs; writes the table and the page."""
  if flags.runs is not None:
    _compare_saved(flags)
    return
  runs, shared = comparison_of(flags)
  at_rounds = report.at_rounds(flags, runs[0].rounds)
  path = runs[0].path.parent
  _check_folders(path, runs, shared)
  missing = [run for run in runs if not runs_lib.is_complete(run)]
  write = lambda: _write(path, runs, at_rounds, flags.target_accuracy)
  failures: list[str] = []
  with contextlib.ExitStack() as stack:
    if missing:
      hardware.start_tensorflow()
      stack.enter_context(runs_lib.shared_workers(shared))
      dataset = _load(missing)
      runs_lib.check_data(runs, dataset)
    else:
      logging.info('all %d runs are finished', len(runs))
    stack.enter_context(output_folder.opened(path, 'comparison', 'experiment'))
    with runs_lib.reporting(write) as report_run:
      for run in missing:
        position = f'run {runs.index(run) + 1} of {len(runs)}'
        logging.info('%s: %s, seed %d', position, run.algorithm, run.seed)
        failures += filter(None, [runs_lib.run(run, dataset)])
        report_run()
    print(write())
  print(f'page  {path / "comparison.html"}')
  if failures:
    raise errors.RunError('; '.join(failures))


def _compare_saved(flags: absl_flags.FlagValues) -> None:
  """Compares runs that there are."""
  from safl_tf.reporting import comparison

  for name in flags:
    if flags[name].present and name not in _WITH_RUNS:
      value = flags[name].value
      raise errors.InputError(name, value, 'has no effect with --runs')
  config = RunConfig.read(flags, algorithm='safl', seed=0)
  if config.experiment is None:
    config = dataclasses.replace(config, experiment='compare')
  config = config.resolve()
  path = config.path
  output_folder.check(path, 'comparison', 'experiment')
  saved = saved_runs.find(flags.runs, path)
  rounds = [run.history[-1]['round'] for run in saved]
  sentences = [f'{len(saved)} runs of {min(rounds)} to {max(rounds)} rounds.']
  if min(rounds) == max(rounds):
    sentences = [f'{len(saved)} runs of {max(rounds)} rounds.']
  content = comparison.Comparison(
    saved_runs.to_compare(saved),
    sentences,
    report.at_rounds(flags, max(rounds)),
    flags.target_accuracy,
    saved_runs.shared_settings(saved),
    config.figure_formats,
    'Runs compared',
    **saved_runs.about(saved),
  )
  with output_folder.opened(path, 'comparison', 'experiment'):
    print(comparison.write(path, 'comparison', content))
  print(f'page  {path / "comparison.html"}')


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
  from safl_tf.reporting import comparison, names, tables

  algorithms = list(dict.fromkeys(run.algorithm for run in runs))
  finished = [
    tables.Run({'algorithm': run.algorithm}, run.seed, history)
    for run in sorted(runs, key=lambda run: algorithms.index(run.algorithm))
    if (history := runs_lib.history(run)) is not None
  ]
  content = comparison.Comparison(
    finished,
    runs_lib.describe(runs, len(finished)),
    at_rounds,
    target,
    runs_lib.shared_settings(runs, _VARIED),
    runs[0].figure_formats,
    f'{", ".join(names.value("algorithm", a) for a in algorithms)} compared',
    **runs_lib.about(runs),
  )
  return comparison.write(path, 'comparison', content)


def define(flags: absl_flags.FlagValues) -> None:
  """Adds the flags of safl-compare."""
  _Comparison.define(flags)
  report.Report.define(flags)
  RunConfig.define(flags, omit=_VARIED)
  flags.set_default('export', 'none')
  experiment = flags['experiment']
  experiment.help = (
    'Name of the comparison; compare_DATASET if not given, compare with --runs.'
  )


cli = functools.partial(program.run, 'safl-compare', __doc__, define, main)

if __name__ == '__main__':
  cli()
