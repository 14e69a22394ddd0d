"""Histories and the paper's numbers -> tables, charts and sentences."""

import functools
import importlib.resources
import json
from collections.abc import Mapping
from typing import Any

from safl_tf.experiments.paper import (
  curves,
  run_stats,
  sensitivity,
  tables,
  uploads,
)
from safl_tf.experiments.paper import (
  results as results_lib,
)

_FIND = {
  'convergence_mnist': curves.convergence,
  'convergence_speech': curves.convergence,
  'early_accuracy': tables.early_accuracy,
  'epsilon_temperature': tables.epsilon_temperature,
  'batch_size': tables.batch_size,
  'fraction': curves.fraction,
  'uploads': uploads.uploads,
  'biased': curves.biased,
  'techniques': curves.techniques,
}


@functools.cache
def paper_numbers() -> dict[str, Any]:
  """The numbers and the claims of the paper, by experiment."""
  folder = importlib.resources.files('safl_tf.experiments.paper')
  return json.loads((folder / 'paper_numbers.json').read_text('utf-8'))


def find(
  results: run_stats.Results, numbers: Mapping[str, Any] | None = None
) -> results_lib.Outcome:
  """What the finished runs of an experiment come to.

  Args:
    results: of an experiment; parts may be missing.
    numbers: in place of `paper_numbers`.
  """
  numbers = paper_numbers() if numbers is None else numbers
  name = results.plan.experiment
  if name == 'sensitivity':
    return sensitivity.sensitivity(results, numbers)
  return _FIND[name](results, numbers[name])
