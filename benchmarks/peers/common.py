"""The workload and the report format that all scripts share.

Needs only NumPy, as every framework has its own environment.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

# Allowed difference of test losses: float32 sums in another order.
TOLERANCE = 1e-5


class Work(NamedTuple):
  """The workload that `benchmarks.peers.prepare` wrote.

  Attributes:
    x: pixels of all clients' examples, uint8 [N, 28, 28, 1]; the model
      divides them by 255.
    y: labels, int32 [N].
    x_test: pixels of the test examples.
    y_test: their labels.
    plan: the examples of every batch, int32 [rounds, clients, steps, batch].
    weights: the initial model in Keras order, each kernel before its bias. Of
      LeNet-5: [5, 5, 1, 6], [5, 5, 6, 16], [256, 120], [120, 84], [84, 10]; of
      a dense network: [784, 200], [200, 200], [200, 10].
    learning_rate: learning rate of plain SGD on the loss summed over a batch.
    expected: safl_tf's test loss after each round.
    parts: the examples that each client holds, int32 [clients, examples].
  """

  x: np.ndarray
  y: np.ndarray
  x_test: np.ndarray
  y_test: np.ndarray
  plan: np.ndarray
  weights: list[np.ndarray]
  learning_rate: float
  expected: np.ndarray
  parts: np.ndarray

  @property
  def dense(self) -> bool:
    """Whether the model is the dense network, with tanh; else LeNet-5."""
    return self.weights[0].ndim == 2


def load(path: str) -> Work:
  """Reads the workload."""
  with np.load(path) as file:
    count = sum(name.startswith('weight_') for name in file)
    weights = [file[f'weight_{i}'] for i in range(count)]
    return Work(
      file['x'],
      file['y'],
      file['x_test'],
      file['y_test'],
      file['plan'],
      weights,
      float(file['learning_rate']),
      file['expected'],
      file['parts'],
    )


class Stopwatch:
  """Times rounds: call it before the first round and after each."""

  def __init__(self) -> None:
    self.seconds: list[float] = []
    self._last: float | None = None

  def __call__(self) -> None:
    """Ends the current round, if any, and starts the next."""
    now = time.perf_counter()
    if self._last is not None:
      self.seconds.append(now - self._last)
    self._last = now


def report(
  framework: str, version: str, seconds: list[float], loss: float, work: Work
) -> None:
  """Prints one line of JSON; exits with 1 if the test loss differs."""
  expected = float(work.expected[len(seconds) - 1])
  same = bool(abs(loss - expected) <= TOLERANCE)
  print(
    json.dumps(
      {
        'framework': framework,
        'version': version,
        'python': sys.version.split()[0],
        'model': 'a dense network' if work.dense else 'LeNet-5',
        'clients': int(work.plan.shape[1]),
        'first': seconds[0],
        'round': float(np.median(seconds[1:])),
        'seconds': seconds,
        'test_loss': loss,
        'expected_loss': expected,
        'same': same,
      }
    )
  )
  if not same:
    sys.exit(1)


def main(run: Callable[[Work], tuple[str, str, list[float], float]]) -> None:
  """Runs a framework on the workload named on the command line.

  Args:
    run: maps the workload to (framework, version, seconds of each round, test
      loss).
  """
  if len(sys.argv) != 2:
    sys.exit(f'usage: {sys.argv[0]} WORK.npz (see benchmarks/peers/README.md)')
  work = load(sys.argv[1])
  report(*run(work), work)
