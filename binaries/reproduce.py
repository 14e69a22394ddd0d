"""safl-reproduce: see `binaries.reproduce_flags`."""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from absl import logging

from binaries import common, reproduce_flags, running, train
from safl_tf.experiments.paper import experiments, plans
from safl_tf.util import errors

if TYPE_CHECKING:
  from safl_tf.data import dataset as dataset_lib

Values = Sequence[dict[str, Any]]

# What an error is about if data are not there.
_DATA = ('dataset', 'data_dir', 'speech_dir')


def main() -> None:
  """Flags -> runs that aren't there yet -> a report for each experiment."""
  if reproduce_flags.FLAGS.list:
    print(_list())
    return
  jobs = reproduce_flags.jobs()
  try:
    left_out = _reproduce_all(jobs)
  except errors.InputError as error:
    if error.argument != 'experiment':
      raise
    # What is wrong with a folder is told as to users of safl-train.
    told = error.hint.replace('--experiment', '--output_dir')
    raise errors.InputError('output_dir', error.value, told) from error
  if left_out:
    raise common.ExitError('; '.join(left_out))


def _reproduce_all(jobs: Sequence[reproduce_flags.Job]) -> list[str]:
  """Runs experiments one after the other; which of several had no data."""
  asked = [(job, [job.values(*run) for run in job.runs]) for job in jobs]
  for _, values in asked:
    for one in values:
      train.folder_of(one).check()
  left_out = []
  for job, values in asked:
    try:
      _reproduce(job, values)
    except errors.InputError as error:
      if len(asked) == 1 or error.argument not in _DATA:
        raise
      left_out.append(f'{job.plan.experiment} was left out: {error}')
      logging.info('%s', left_out[-1])
  return left_out


def _list() -> str:
  """The experiments, in columns."""
  lines = experiments.table()
  widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
  shown = ''.join(
    '  '.join(map(str.ljust, line, widths)).rstrip() + '\n' for line in lines
  )
  return f'{shown}\nTimes are for two CPU cores and the default seeds.'


def _reproduce(job: reproduce_flags.Job, values: Values) -> None:
  """Runs what is left of an experiment and writes its report."""
  wanted = [i for i, run in enumerate(job.runs) if run[0].name in job.wanted]
  # The flags of the run that each is read from: another experiment's may be
  # the same.
  sources = [
    one if running.history(one) is not None else running.twin(one) or one
    for one in values
  ]
  left = [
    i
    for i in wanted
    if sources[i] is values[i] and not running.is_complete(values[i])
  ]
  missing: dict[str, str] = {}
  told = None
  if left:
    common.start_tensorflow()
    data, problems = _load([values[i] for i in left])
    there = [i for i in left if values[i]['dataset'] in data]
    nothing = not there and len(left) == len(wanted)
    for name, error in problems.items():
      if nothing or not job.plan.skip_missing_data:
        raise error
      missing[name] = str(error)
      logging.info('%s is left out: %s', name, error)
    for i in _in_turn(job, there):
      running.run(values[i], data[values[i]['dataset']])
      told = _write(job, sources, missing)
  else:
    logging.info('there is nothing left to run')
  print(told or _write(job, sources, missing))
  print(f'page  {job.path / "report.html"}\n')


def _load(
  values: Values,
) -> tuple[dict[str, 'dataset_lib.Dataset'], dict[str, errors.InputError]]:
  """The data sets of some runs by name, and what is wrong with others."""
  from binaries import building

  found: dict[str, dataset_lib.Dataset] = {}
  problems: dict[str, errors.InputError] = {}
  for one in values:
    name = one['dataset']
    if name in found or name in problems:
      continue
    try:
      found[name] = building.load_data(one)
    except errors.InputError as error:
      if error.argument not in _DATA:
        raise
      problems[name] = error
  return found, problems


def _in_turn(job: reproduce_flags.Job, left: Sequence[int]) -> Iterator[int]:
  """The runs that are left, each after a line on where we are."""
  from safl_tf.util import atomic_io

  runs, start, done = job.runs, time.monotonic(), 0.0
  seconds = {i: runs[i][0].seconds() for i in left}
  with atomic_io.run_lock(job.path):
    for i, expected in seconds.items():
      pace = (time.monotonic() - start) / done if done else 1.0
      logging.info(
        'part %d of %d: %s, seed %d; about %s left',
        i + 1,
        len(runs),
        runs[i][0].name,
        runs[i][1],
        plans.format_duration(pace * (sum(seconds.values()) - done)),
      )
      yield i
      done += expected


def _write(
  job: reproduce_flags.Job, sources: Values, missing: Mapping[str, str]
) -> str:
  """Writes the report on what is finished; returns its tables."""
  from safl_tf.experiments.paper import report
  from safl_tf.experiments.paper import results as results_lib

  histories: dict[str, list[results_lib.History]] = {}
  shared = []
  for (part, _), one in zip(job.runs, sources, strict=True):
    history = running.history(one)
    if history is not None:
      histories.setdefault(part.name, []).append(history)
      path = running.path_of(one)
      if path.parent != job.path:
        shared.append(f'{path.parent.name}/{path.name}')
  found = [
    results_lib.Runs(part, histories[part.name])
    for part in job.plan.parts
    if part.name in histories
  ]
  results = results_lib.Results(job.plan, job.seeds, found, missing, shared)
  return report.write(job.path, results)


def cli() -> None:
  """The console script."""
  common.run('safl-reproduce', reproduce_flags, main)


if __name__ == '__main__':
  cli()
