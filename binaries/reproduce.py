"""Runs experiments of the paper and compares the results with the paper's.

The paper is "Gradual Federated Learning with Simulated Annealing".

  safl-reproduce --list
  safl-reproduce --experiment=early_accuracy --scale=cpu --data_dir=DIR
  safl-reproduce --experiment=all --scale=smoke

OUTPUT_DIR/EXPERIMENT_SCALE has report.html, report.md, figures/ with their
data, values.csv (the paper's values and ours), claims.csv (the paper's claims
and verdicts), all rewritten while parts finish, and a folder PART_seedSEED per
run. The same command resumes. Runs of other experiments in OUTPUT_DIR with the
same flags are reused.
"""

import dataclasses
import functools
import os
import pathlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from absl import flags as absl_flags
from absl import logging

from safl_tf.experiments.paper import experiments, plans
from safl_tf.util import errors, hardware, output_folder, validation

from . import program, runs
from .flags import group
from .flags.data import Data
from .flags.run_config import Figures, RunConfig

if TYPE_CHECKING:
  from safl_tf.data import dataset as dataset_lib

_DATA_FLAGS = ('dataset', 'data_dir', 'speech_dir')


@dataclasses.dataclass(frozen=True)
class _Experiment(group.Group, topic='experiment'):
  experiment: str | None = group.choice(
    None, [*experiments.EXPERIMENTS, 'all'], 'The experiment to run.'
  )
  scale: str = group.choice(
    'cpu',
    plans.SCALES,
    'paper is the full size; cpu takes up to an hour per experiment on '
    'two cores; smoke takes seconds and only tests the program.',
  )
  seeds: str | None = group.text(
    None,
    'Seeds of all random draws, separated by commas; 0,1,2 for paper (0 to 99 '
    'for uploads), else 0.',
  )
  parts: str | None = group.text(
    None,
    'Parts of the experiment to run, separated by commas, such as '
    'fedavg_n80,safl_n80; all if not given.',
  )
  output_dir: str = group.text('runs', 'Folder that contains the experiments.')
  list: bool = group.boolean(
    False, 'List the experiments and their approximate durations.'
  )


class Job(NamedTuple):
  """An experiment to run."""

  plan: plans.Plan
  seeds: tuple[int, ...]
  path: pathlib.Path
  runs: list[tuple[plans.Part, RunConfig]]  # in the order of training
  wanted: Sequence[str]  # names of the parts to run


def jobs(flags: absl_flags.FlagValues) -> list[Job]:
  """Returns the experiments that the flags name."""
  name = group.required(flags, 'experiment')
  if name == 'all' and flags.parts is not None:
    raise errors.InputError(
      'parts', flags.parts, 'needs one experiment, not --experiment=all'
    )
  names = experiments.EXPERIMENTS if name == 'all' else [name]
  requested = [_job(flags, experiments.EXPERIMENTS[name]) for name in names]
  for location in ('data_dir', 'speech_dir'):
    readers = [config for job in requested for _, config in job.runs]
    value = flags[location].value
    if value and not any(getattr(config, location) for config in readers):
      hint = f'no run of --experiment={name} --scale={flags.scale} reads it'
      raise errors.InputError(location, value, hint)
  return requested


def _job(flags: absl_flags.FlagValues, experiment: plans.Experiment) -> Job:
  plan = experiment.plan(flags.scale)
  seeds, wanted = plan.seeds, tuple(part.name for part in plan.parts)
  if flags.seeds is not None:
    seeds = group.parse_integers('seeds', flags.seeds, 0, validation.MAX_SEED)
  if flags.parts is not None:
    check = lambda name: validation.choice('parts', name, wanted)
    wanted = group.parse_list('parts', flags.parts, check)
  folder = os.path.expanduser(flags.output_dir)
  path = pathlib.Path(folder, f'{experiment.name}_{flags.scale}')
  runs = []
  for part, seed in plan.runs(seeds):
    given = {**part.flags, 'export': 'none', 'figures': flags.figures}
    for location in ('data_dir', 'speech_dir'):
      if flags[location].value is not None:
        given[location] = flags[location].value
    name = f'{part.name}_seed{seed}'
    config = RunConfig.parse(
      given, seed=seed, output_dir=str(path), experiment=name
    )
    runs.append((part, config))
  return Job(plan, seeds, path, runs, wanted)


def main(flags: absl_flags.FlagValues) -> None:
  """Trains the missing runs and writes a report per experiment."""
  if flags.list:
    for name in flags:
      if flags[name].present and name not in ('list', 'verbosity'):
        hint = 'has no effect with --list'
        raise errors.InputError(name, flags[name].value, hint)
    print(_list())
    return
  requested, skipped = jobs(flags), []
  try:
    for job in requested:
      output_folder.check(job.path, 'reproduction', 'output_dir')
      for _, config in job.runs:
        config.directory().check()
    for job in requested:
      try:
        _reproduce(job)
      except errors.InputError as error:
        if len(requested) == 1 or error.argument not in _DATA_FLAGS:
          raise
        skipped.append(f'{job.plan.experiment} was left out: {error}')
        logging.info('%s', skipped[-1])
  except errors.InputError as error:
    if error.argument != 'experiment':
      raise
    hint = error.hint.replace('--experiment', '--output_dir')
    raise errors.InputError('output_dir', error.value, hint) from error
  if skipped:
    raise errors.RunError('; '.join(skipped))


def _list() -> str:
  """Returns a table of the experiments."""
  lines = experiments.table()
  widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
  table = ''.join(
    '  '.join(map(str.ljust, line, widths)).rstrip() + '\n' for line in lines
  )
  return f'{table}\nTimes are for two CPU cores and the default seeds.'


def _reproduce(job: Job) -> None:
  """Runs the missing parts of an experiment and writes its report."""
  configs = [config for _, config in job.runs]
  wanted = [i for i, run in enumerate(job.runs) if run[0].name in job.wanted]
  # The runs to report on; another experiment may have an equivalent one.
  sources = [runs.find_finished(config) or config for config in configs]
  missing = [
    i
    for i in wanted
    if sources[i] is configs[i] and not runs.is_complete(configs[i])
  ]
  unavailable: dict[str, str] = {}
  ready = []
  if missing:
    hardware.start_tensorflow()
    data, problems = _load([configs[i] for i in missing])
    ready = [i for i in missing if configs[i].dataset in data]
    for name, dataset in data.items():
      runs.check_data([c for c in sources if c.dataset == name], dataset)
    nothing = not ready and len(missing) == len(wanted)
    for name, error in problems.items():
      if nothing or not job.plan.skip_missing_data:
        raise error
      unavailable[name] = str(error)
      logging.info('%s is left out: %s', name, error)
  else:
    logging.info('all runs are finished')
  write = functools.partial(_write, job, sources, unavailable)
  with output_folder.opened(job.path, 'reproduction', 'output_dir'):
    with runs.reporting(write) as report_run:
      for i in _log_progress(job, ready):
        runs.run(configs[i], data[configs[i].dataset])
        report_run()
    print(write())
  print(f'page  {job.path / "report.html"}\n')


def _load(
  configs: Sequence[RunConfig],
) -> tuple[dict[str, 'dataset_lib.Dataset'], dict[str, errors.InputError]]:
  """Loads the data sets of runs; returns them and the errors, by name."""
  data: dict[str, dataset_lib.Dataset] = {}
  problems: dict[str, errors.InputError] = {}
  for config in configs:
    name = config.dataset
    if name not in data and name not in problems:
      try:
        data[name] = config.load()
      except errors.InputError as error:
        if error.argument not in _DATA_FLAGS:
          raise
        problems[name] = error
  return data, problems


def _log_progress(job: Job, missing: Sequence[int]) -> Iterator[int]:
  """Yields the missing runs, after a log line on each."""
  start, done = time.monotonic(), 0.0
  seconds = {i: job.runs[i][0].seconds() for i in missing}
  for i, expected in seconds.items():
    part, config = job.runs[i]
    pace = (time.monotonic() - start) / done if done else 1.0
    left = plans.format_duration(pace * (sum(seconds.values()) - done))
    position = f'part {i + 1} of {len(job.runs)}: {part.name}'
    logging.info('%s, seed %d; about %s left', position, config.seed, left)
    yield i
    done += expected


def _write(
  job: Job, sources: Sequence[RunConfig], unavailable: Mapping[str, str]
) -> str:
  """Writes the report on the finished runs; returns its tables."""
  from safl_tf.experiments.paper import report
  from safl_tf.experiments.paper import results as results_lib

  histories: dict[str, list[results_lib.History]] = {}
  shared = []
  for (part, _), config in zip(job.runs, sources, strict=True):
    history = runs.history(config)
    if history is not None:
      histories.setdefault(part.name, []).append(history)
      if config.path.parent != job.path:
        shared.append(f'{config.path.parent.name}/{config.path.name}')
  finished = [
    results_lib.Runs(part, histories[part.name])
    for part in job.plan.parts
    if part.name in histories
  ]
  results = results_lib.Results(
    job.plan, job.seeds, finished, unavailable, shared
  )
  formats = job.runs[0][1].figure_formats
  return report.write(job.path, results, formats)


def define(flags: absl_flags.FlagValues) -> None:
  """Adds the flags of safl-reproduce."""
  _Experiment.define(flags)
  every = {field.name for field in dataclasses.fields(Data)}
  Data.define(flags, omit=every - {'data_dir', 'speech_dir'})
  Figures.define(flags)


def cli() -> None:
  """Runs safl-reproduce."""
  program.run('safl-reproduce', __doc__, define, main)


if __name__ == '__main__':
  cli()
