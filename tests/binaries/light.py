"""Runs command lines, each in a process of its own that is forked from here.

Reads [[program, arguments, folder], ...] from stdin, as JSON, and writes
[[exit code, stdout, stderr], ...]. A process that has imported TensorFlow ends
with a traceback.
"""

import json
import os
import sys
import tempfile

from binaries import (
  client,
  compare,
  evaluate,
  export,
  partition,
  reproduce,
  server,
  sweep,
  theory,
  train,
)

PROGRAMS = {
  'client': client,
  'compare': compare,
  'evaluate': evaluate,
  'export': export,
  'partition': partition,
  'reproduce': reproduce,
  'server': server,
  'sweep': sweep,
  'theory': theory,
  'train': train,
}


def run(program, arguments, folder):
  """Becomes the program."""
  os.chdir(folder)
  sys.argv = [program, *arguments]
  try:
    PROGRAMS[program].cli()
  finally:
    assert not {'keras', 'tensorflow'} & set(sys.modules)


def main():
  outcomes = []
  for case in json.load(sys.stdin):
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
      child = os.fork()
      if child == 0:
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        return run(*case)
      code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
      for file in (out, err):
        file.seek(0)
      outcomes.append([code, out.read().decode(), err.read().decode()])
  return json.dump(outcomes, sys.stdout)


if __name__ == '__main__':
  main()
