"""Trains over a grid of flags and seeds and compares the results.

All flags of safl-train except --seed have the same meaning here; --grid and
--point set some of them. Runs with the same seed share clients, data, initial
models and selections.

  safl-sweep --grid=epsilon=0.1,0.3,0.5 --grid=temperature=10,80 --seeds=0,1,2
  safl-sweep --point=epsilon=0.1,temperature=10 --point=epsilon=0.5
  safl-sweep --grid=algorithm=fedavg,safl --grid=epsilon=0.1,0.3 --rounds=50

OUTPUT_DIR/EXPERIMENT has sweep.html, sweep.md, sweep.tex, sweep.csv (a row per
setting), runs.csv (a row per run), plots/, all rewritten while runs finish, and
a folder per run; tensorboard --logdir shows them on its HParams page. The same
command resumes; with more values or seeds it trains only the new runs. A run
that fails does not end the others.
"""

import contextlib
import dataclasses
import functools
import glob
import itertools
import os
import pathlib
from collections.abc import Callable, Sequence

import tqdm
from absl import flags as absl_flags
from absl import logging

from safl_tf.util import errors, hardware, output_folder, validation

from . import points, pool, program, sweep_worker
from . import runs as runs_lib
from .flags import group, report
from .flags.run_config import RunConfig
from .sweep_worker import SweepRun

_PROCESS_BYTES = 2e9  # of memory that a process takes at least
_CORES = 2  # per process, by default


@dataclasses.dataclass(frozen=True)
class _Sweep(group.Group, topic='sweep'):
  grid: Sequence[str] = group.texts(
    'A flag and its values, such as epsilon=0.1,0.3. Several grids are '
    'combined.'
  )
  point: Sequence[str] = group.texts(
    'Flags with a value each, such as epsilon=0.1,temperature=10. Several '
    'points are run one after the other, each with all values of the grids.'
  )
  seeds: str = group.text('0', 'Seeds of all random draws, comma-separated.')
  processes: int | None = group.integer(
    None,
    'Number of runs at a time, which share the cores; by the cores and the '
    'memory if not given.',
  )


def runs_of(flags: absl_flags.FlagValues) -> list[SweepRun]:
  """Returns the runs that the flags describe, in the order of training."""
  from safl_tf.reporting import sweep as sweep_lib

  seeds = group.parse_integers('seeds', flags.seeds, 0, validation.MAX_SEED)
  settings = points.settings(flags)
  first = settings[0].config.resolve()
  name = first.experiment
  if flags.experiment is None:
    name = f'sweep{name.removeprefix(first.algorithm)}'
  folder = os.path.join(first.output_dir, name)
  runs = []
  for seed, (setting, config) in itertools.product(seeds, settings):
    own = sweep_lib.run_name(setting, seed)
    config = dataclasses.replace(
      config, seed=seed, output_dir=folder, experiment=own
    )
    runs.append(SweepRun(setting, config.resolve()))
  return runs


def main(flags: absl_flags.FlagValues) -> None:
  """Trains the missing runs; writes the table and the page."""
  runs = runs_of(flags)
  path = runs[0].config.path.parent
  at_rounds = report.at_rounds(flags, runs[0].config.rounds)
  output_folder.check(path, 'sweep', 'experiment')
  for run in runs:
    run.config.directory().check()
  missing = [run for run in runs if not runs_lib.is_complete(run.config)]
  processes = _processes(flags.processes, missing)
  target = flags.target_accuracy
  write = functools.partial(_write, path, runs, at_rounds, target)
  failures: list[str] = []
  with contextlib.ExitStack() as stack:
    if missing:
      count = min(processes, len(missing))
      workers = pool.Pool(sweep_worker.work, count, program.describe)
      stack.enter_context(workers)
      check = workers.call(sweep_worker.Check(missing, runs)).error
      if check is not None:
        raise check
    else:
      logging.info('all %d runs are finished', len(runs))
    stack.enter_context(output_folder.opened(path, 'sweep', 'experiment'))
    if missing:
      failures = _train(workers, missing, len(runs), write)
    table = write()
  if table:
    print(table)
    print(f'page  {path / "sweep.html"}')
  if failures:
    for failure in failures:
      logging.error('%s', failure)
    which = f'{len(failures)} of {len(runs)} runs'
    raise errors.RunError(f'{which} failed; the same command tries again')


def _train(
  workers: pool.Pool,
  missing: Sequence[SweepRun],
  total: int,
  write: Callable[[], str],
) -> list[str]:
  """Trains runs; returns a line for each that failed."""
  from safl_tf.reporting import sweep as sweep_lib

  failures: list[str] = []
  done = total - len(missing)
  write_now_and_then = sweep_lib.occasionally(write)
  with tqdm.tqdm(total=total, initial=done, unit='run', disable=None) as bar:
    for run, failure, error in workers.map(missing):
      failure = failure if error is None else str(error)
      end = 'is finished' if failure is None else f'failed: {failure}'
      if failure is not None:
        failures.append(f'{run.label}: {failure}')
      write_now_and_then()
      done += 1
      bar.update()
      if bar.disable or failure is not None:
        with bar.external_write_mode():
          logging.info('run %d of %d: %s %s', done, total, run.label, end)
  return failures


def _processes(given: int | None, missing: Sequence[SweepRun]) -> int:
  """Returns the number of runs at a time."""
  import psutil

  on_ray = any(run.config.executor == 'ray' for run in missing)
  if on_ray and given not in (None, 1):
    hint = 'must be 1 with --executor=ray, which uses all cores'
    raise errors.InputError('processes', given, hint)
  if given is not None:
    return given
  on_cpu = all(run.config.device.startswith('cpu') for run in missing)
  if on_ray or (glob.glob('/dev/nvidia[0-9]*') and not on_cpu):
    return 1
  memory = psutil.virtual_memory().available // _PROCESS_BYTES
  return int(max(1, min(hardware.num_cores() // _CORES, memory)))


def _write(
  path: pathlib.Path,
  runs: Sequence[SweepRun],
  at_rounds: Sequence[int],
  target: float,
) -> str:
  """Writes the report on finished runs; returns its table as Markdown."""
  from safl_tf.reporting import comparison, names, tables
  from safl_tf.reporting import sweep as sweep_lib

  settings = [run.setting for run in runs]
  finished = [
    (run, history)
    for run in sorted(runs, key=lambda run: settings.index(run.setting))
    if (history := runs_lib.history(run.config)) is not None
  ]
  if not finished:
    return ''
  configs = [run.config for run in runs]
  varied = ('seed', *runs[0].setting)
  content = comparison.Comparison(
    [tables.Run(run.setting, run.config.seed, rows) for run, rows in finished],
    runs_lib.describe(configs, len(finished)),
    at_rounds,
    target,
    runs_lib.shared_settings(configs, varied),
    configs[0].figure_formats,
    f'Sweep over {", ".join(map(names.heading, runs[0].setting))}',
    **runs_lib.about(configs),
  )
  return sweep_lib.write(
    path, content, [run.config.path for run, _ in finished]
  )


def define(flags: absl_flags.FlagValues) -> None:
  """Adds the flags of safl-sweep."""
  _Sweep.define(flags)
  report.Report.define(flags)
  RunConfig.define(flags, omit=('seed',))
  flags.set_default('export', 'none')
  experiment = flags['experiment']
  experiment.help = 'Name of the sweep; sweep_DATASET if not given.'


cli = functools.partial(program.run, 'safl-sweep', __doc__, define, main)

if __name__ == '__main__':
  cli()
