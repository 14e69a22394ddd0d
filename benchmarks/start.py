"""Times what runs cost besides training: a start, and nine short runs.

  python -m benchmarks.start --write=docs/benchmarks.md
  python -m benchmarks.start --only=start

On the sample of MNIST with LeNet-5; every program runs in a process of its own.
"""

import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from benchmarks import reports
from safl_tf.reporting import tables

_FLAGS = ('--clients_per_round=2', '--rounds=2', '--export=none')
_IMPORT = 'import tensorflow'
# Prints the seconds of tracing and compiling the round of the flags.
_COMPILE = """
import time
from binaries import factories
from binaries.flags.run_config import RunConfig
from safl_tf.util import hardware

hardware.start_tensorflow()
config = RunConfig.parse({'clients_per_round': 2})
process = factories.build_process(config, config.load())
trainer = process.trainer_of(process.initialize(0))
start = time.perf_counter()
trainer.compile()
print(time.perf_counter() - start)
"""
_NINE = {
  'safl-compare, 3 algorithms, 3 seeds': (
    'compare',
    '--algorithms=fedavg,safl,extended_safl',
    '--seeds=0,1,2',
  ),
  'safl-sweep, 3 ε, 3 L': (
    'sweep',
    '--grid=epsilon=0.1,0.3,0.5',
    '--grid=temperature=10,40,80',
  ),
  'safl-sweep, 3 learning rates, 3 seeds': (
    'sweep',
    '--grid=learning_rate=0.001,0.003,0.01',
    '--seeds=0,1,2',
  ),
}


def _start(*command: str) -> subprocess.Popen[str]:
  return subprocess.Popen(
    [sys.executable, *command],
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
  )


def _wait(process: subprocess.Popen[str]) -> tuple[str, float]:
  """Returns the output and the CPU seconds of a process and its children."""
  assert process.stdout is not None
  output = process.stdout.read()
  _, status, usage = os.wait4(process.pid, 0)
  process.returncode = os.waitstatus_to_exitcode(status)
  process.stdout.close()
  if process.returncode:
    raise subprocess.CalledProcessError(
      process.returncode, process.args, output
    )
  return output, usage.ru_utime + usage.ru_stime


def _program(name: str, *flags: str) -> tuple[str, ...]:
  return '-c', f'from binaries.entry_points import {name}; {name}()', *flags


def import_seconds() -> float:
  """Returns the seconds of a process that imports TensorFlow."""
  start = time.perf_counter()
  _wait(_start('-c', _IMPORT))
  return time.perf_counter() - start


def compile_seconds() -> float:
  """Returns the seconds of tracing and compiling a client's round."""
  return float(_wait(_start('-c', _COMPILE))[0].split()[-1])


def first_round_seconds() -> float:
  """Returns the seconds of safl-train until its first round is finished."""
  with tempfile.TemporaryDirectory() as folder:
    start = time.perf_counter()
    process = _start(*_program('train', *_FLAGS, f'--output_dir={folder}'))
    assert process.stdout is not None
    for line in process.stdout:
      if line.startswith('round 1 of'):
        break
    seconds = time.perf_counter() - start
    _wait(process)
  return seconds


def cpu_seconds(name: str, *flags: str) -> float:
  """Returns the CPU seconds of a program."""
  with tempfile.TemporaryDirectory() as folder:
    command = _program(name, *_FLAGS, *flags, f'--output_dir={folder}')
    return _wait(_start(*command))[1]


def start_rows(cycles: int) -> list[list[str]]:
  """Returns the table of a start."""
  parts = {
    'importing TensorFlow': import_seconds,
    'compiling the round': compile_seconds,
    'safl-train to its first finished round': first_round_seconds,
  }
  measured: dict[str, list[float]] = {name: [] for name in parts}
  import_seconds()  # reads the files once
  for _ in range(cycles):
    for name, measure in parts.items():
      measured[name].append(measure())
  seconds = {name: statistics.median(v) for name, v in measured.items()}
  tensorflow, compiling, first = seconds.values()
  seconds['the rest'] = first - tensorflow - compiling
  return [['', 's'], *([name, f'{s:.2f}'] for name, s in seconds.items())]


def nine_rows() -> list[list[str]]:
  """Returns the table of nine runs."""
  alone = cpu_seconds('train')
  rows = [['', 'runs', 'CPU s', 'CPU s per run', 'of safl-train']]
  rows.append(['safl-train', '1', f'{alone:.1f}', f'{alone:.1f}', '100 %'])
  for name, command in _NINE.items():
    total = cpu_seconds(*command)
    run = total / 9
    rows.append([name, '9', f'{total:.1f}', f'{run:.1f}', f'{run / alone:.0%}'])
  return rows


def section(cycles: int, only: str | None) -> str:
  """Returns the tables as Markdown."""
  text = ['## A start, and nine short runs']
  flags = ' '.join(_FLAGS)
  text.append(
    f'{reports.provenance("benchmarks.start")} Programs with '
    f'`{flags}`; medians of {cycles} starts, taken in turns.'
  )
  if only in (None, 'start'):
    text.append(tables.to_markdown(start_rows(cycles)).rstrip())
  if only in (None, 'nine'):
    text.append(tables.to_markdown(nine_rows()).rstrip())
  return '\n\n'.join(text)


def main() -> None:
  """Measures, prints the tables and optionally writes them."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--only', choices=('start', 'nine'), help='one table')
  parser.add_argument('--cycles', type=int, default=3, help='of starts')
  parser.add_argument('--write', type=pathlib.Path, help='a Markdown file')
  arguments = parser.parse_args()
  text = section(arguments.cycles, arguments.only)
  reports.write(arguments.write, 'start', text)


if __name__ == '__main__':
  main()
