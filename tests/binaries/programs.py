"""Calls the programs as a user would, in this process or in another."""

import importlib
import os
import pathlib
import subprocess
import sys
from typing import NamedTuple

import pytest
from absl import logging

ROOT = pathlib.Path(__file__).parents[2]
SMALL = ('--num_devices=4', '--mean_examples=60', '--rounds=2', '--export=none')
LEARNING = (
  *SMALL,
  '--init=shared',
  '--partition=iid',
  '--local_epochs=10',
  '--learning_rate=0.01',
)

# Ends with a traceback if TensorFlow was imported.
_LIGHT = """
import sys
from binaries import {0} as program
try:
  program.cli()
finally:
  assert not {{'keras', 'tensorflow'}} & set(sys.modules)
"""


class Outcome(NamedTuple):
  code: int
  out: str
  err: str


def call(program, *arguments):
  """Runs a program in this process; its exit code."""
  name = 'training' if program == 'train' else program
  flags = importlib.import_module(f'binaries.{name}_flags').FLAGS
  for flag in flags:
    flags[flag].unparse()
  root = logging.logging.getLogger()
  handlers, verbosity = list(root.handlers), logging.get_verbosity()
  log = logging.get_absl_handler().python_handler
  stream = log.stream
  log.setStream(sys.stderr)
  if 'keras' in sys.modules:  # forget the names it gave to layers
    sys.modules['keras'].backend.clear_session()
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


def start(*command, cwd=None):
  """Starts Python in a process of its own."""
  return subprocess.Popen(
    [sys.executable, *map(str, command)],
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
    cwd=cwd,
    env={**os.environ, 'PYTHONPATH': str(ROOT)},
  )


def call_light(program, *arguments, cwd):
  """Runs a program that must not need TensorFlow, in a process of its own."""
  process = start('-c', _LIGHT.format(program), *arguments, cwd=cwd)
  out, err = process.communicate(timeout=60)
  return Outcome(process.returncode, out, err)


def snapshot(folder):
  """The names and contents of everything in a folder."""
  return {
    path.relative_to(folder): path.read_bytes() if path.is_file() else None
    for path in folder.rglob('*')
  }
