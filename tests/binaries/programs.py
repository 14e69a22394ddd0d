"""Calls the programs as a user would, in this process or in another."""

import dataclasses
import importlib
import json
import os
import pathlib
import subprocess
import sys
from typing import NamedTuple

import pytest
from absl import flags as absl_flags
from absl import logging

from binaries.flags.run_config import RunConfig
from safl_tf.core import client_store
from safl_tf.training import checkpoint, metrics_log

ROOT = pathlib.Path(__file__).parents[2]
SMALL = ('--num_clients=4', '--mean_examples=60', '--rounds=2', '--export=none')
ALIKE = ('--init=shared', '--partition=iid')
LEARNING = (*SMALL, *ALIKE, '--local_epochs=10', '--learning_rate=0.01')


def parse(define, *arguments):
  """Returns parsed flags."""
  flags = absl_flags.FlagValues()
  define(flags)
  flags(['program', *map(str, arguments)])
  return flags


def config(*arguments):
  """Returns the configuration of safl-train with these arguments."""
  return RunConfig.get(parse(RunConfig.define, *arguments))


def flag_names(config):
  """Returns the names of the flags of a group."""
  return {f.name for f in dataclasses.fields(config) if f.metadata}


class Outcome(NamedTuple):
  code: int
  out: str
  err: str


def call(program, *arguments):
  """Runs a program in this process; its exit code."""
  root = logging.logging.getLogger()
  handlers, verbosity = list(root.handlers), logging.get_verbosity()
  log = logging.get_absl_handler().python_handler
  stream = log.stream
  log.setStream(sys.stderr)
  if 'keras' in sys.modules:  # forget the names it gave to layers
    sys.modules['keras'].backend.clear_session(free_memory=False)
  try:
    with pytest.MonkeyPatch.context() as patch:
      patch.setattr(sys, 'argv', [program, *map(str, arguments)])
      importlib.import_module(f'binaries.{program}').cli()
  except SystemExit as error:
    return error.code
  finally:
    log.setStream(stream)
    root.handlers[:] = handlers
    logging.set_verbosity(verbosity)
  return 0


def start(*command, path=ROOT, **options):
  """Starts Python in a process of its own, with packages from a path."""
  return subprocess.Popen(
    [sys.executable, *map(str, command)],
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
    env={**os.environ, 'PYTHONPATH': str(path)},
    **options,
  )


def call_light(cases):
  """Runs (program, arguments, folder) that must not need TensorFlow."""
  request = json.dumps([(p, list(a), str(folder)) for p, a, folder in cases])
  process = start('-m', 'tests.binaries.light', stdin=subprocess.PIPE)
  out, err = process.communicate(request, timeout=120)
  assert process.returncode == 0, err
  return [Outcome(*outcome) for outcome in json.loads(out)]


def check_refused(outcome, program, message):
  """One line on stderr and exit code 2; ... stands for any text."""
  beginning, *parts = message.split(' ... ')
  assert outcome.err.startswith(f'safl-{program}: {beginning}')
  assert all(part in outcome.err for part in parts)
  assert outcome.err.count('\n') == 1 and outcome.err.endswith('\n')
  assert (outcome.code, outcome.out) == (2, '')


def metrics(run):
  """The rows of metrics.csv without columns that differ between equal runs."""
  return [
    {k: v for k, v in row.items() if k not in metrics_log.MEASURED}
    for row in metrics_log.read_csv(run / 'metrics.csv')
  ]


def newest(run):
  """The arrays of the newest checkpoint, including those of clients."""
  saved = checkpoint.Checkpoints(run / 'checkpoints')
  path = run / 'checkpoints' / f'round_{saved.rounds()[-1]:06d}.json'
  names = json.loads(path.read_text())['stores']
  empty = client_store.ClientStore(lambda k: None)
  restored = saved.restore_latest(dict.fromkeys(names, empty))
  arrays = {
    f'{name}/{part}': array
    for name, store in restored.stores.items()
    for part, array in store.to_arrays().items()
  }
  return {**restored.arrays, **arrays}


def check_equal(run, expected):
  """Compares the metrics and the newest checkpoints of two runs."""
  assert metrics(run) == metrics(expected)
  arrays, others = newest(run), newest(expected)
  assert arrays.keys() == others.keys()
  for name, array in arrays.items():
    assert array.tobytes() == others[name].tobytes(), name


def snapshot(folder):
  """The names and contents of everything in a folder."""
  return {
    path.relative_to(folder): path.read_bytes() if path.is_file() else None
    for path in folder.rglob('*')
  }
