"""Processes that time a round when they are told to.

Each thing that is compared has a process of its own, so that memory can be told
apart; they take turns, a round each, so that a machine that is slower for a
while is slower for all of them.
"""

import json
import resource
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import psutil


class Worker:
  """The parent's side.

  Args:
    module: a module whose `main` ends up in `serve`.
    arguments: of its command line.
  """

  def __init__(self, module: str, arguments: Sequence[str]):
    self._process = subprocess.Popen(
      [sys.executable, '-m', module, *arguments],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      stderr=subprocess.DEVNULL,
      text=True,
    )

  def measure(self) -> float:
    """The next value."""
    return self._ask('next')['value']

  def close(self) -> dict[str, Any]:
    """Ends the process; what it has to say, with its memory.

    `peak_mb` is the most it ever had, `rss_mb` what it has at the end.
    """
    facts = self._ask('end')
    self._process.wait()
    return facts

  def _ask(self, word: str) -> dict[str, Any]:
    if self._process.stdin is None or self._process.stdout is None:
      raise ValueError('the process has no pipes')
    self._process.stdin.write(word + '\n')
    self._process.stdin.flush()
    for line in self._process.stdout:
      if line.startswith('{'):
        return json.loads(line)
    raise RuntimeError(f'{self._process.args} ended before it answered')


def serve(values: Iterator[float], facts: Mapping[str, Any]) -> None:
  """The child's side: answers until it is told to end.

  Args:
    values: what to measure, one after the other.
    facts: what to tell at the end.
  """
  for line in sys.stdin:
    if line.strip() == 'next':
      print(json.dumps({'value': next(values)}), flush=True)
    else:
      peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
      unit = 1 if sys.platform == 'darwin' else 1024  # bytes there, KiB here
      memory = {
        'peak_mb': peak * unit / 1e6,
        'rss_mb': psutil.Process().memory_info().rss / 1e6,
      }
      print(json.dumps({**facts, **memory}), flush=True)
      return


def take_turns(
  workers: Mapping[str, Worker], cycles: int
) -> dict[str, list[float]]:
  """A first measurement of each, then `cycles` more, in turns."""
  found: dict[str, list[float]] = {name: [] for name in workers}
  for cycle in range(1 + cycles):
    for name, worker in workers.items():
      found[name].append(worker.measure())
      told = f'{found[name][-1]:.2f}'
      print(f'  cycle {cycle}: {name}: {told}', file=sys.stderr, flush=True)
  return found
