"""A round's row of metrics.csv, and how users see it while a run trains."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from absl import logging

from safl_tf.core import state as state_lib
from safl_tf.training import metrics_log
from safl_tf.training import scores as scores_lib
from safl_tf.util import console

Row = dict[str, Any]


def create(
  metrics: state_lib.RoundMetrics,
  scores: scores_lib.Scores | None,
  of_clients: Mapping[str, float],
  history: list[Row],
  seconds: float,
) -> Row:
  """Returns a round's row.

  Args:
    metrics: of the round.
    scores: of the global model, if it was evaluated.
    of_clients: statistics over clients by column, if they were evaluated.
    history: the rows of the rounds before.
    seconds: that the round took.
  """
  gated, workers = (metrics.q < 1).any(), metrics.workers
  wire = metrics.wire

  def percentile(values: np.ndarray, q: int) -> float | None:
    return float(np.percentile(values, q)) if gated else None

  def total(column: str) -> int:
    before = history[-1][f'total_{column}'] if history else 0
    return before + getattr(metrics, column)

  tested = {} if scores is None else scores.named()
  return {
    'round': metrics.t,
    'test_accuracy': None,
    'test_top5_accuracy': None,
    'test_loss': None,
    **{f'test_{name}': value for name, value in tested.items()},
    'train_loss': metrics.train_loss,
    'p': metrics.p,
    'kept_local': metrics.kept_local,
    'selected': len(metrics.ids) + len(metrics.missing),
    'uploaded': int(metrics.sent.sum()),
    'dropped': len(metrics.dropped),
    'malicious': metrics.malicious,
    'bytes_up': metrics.bytes_up,
    'bytes_down': metrics.bytes_down,
    'total_bytes_up': total('bytes_up'),
    'total_bytes_down': total('bytes_down'),
    'delta_p50': percentile(metrics.delta, 50),
    'delta_p90': percentile(metrics.delta, 90),
    'q_p10': percentile(metrics.q, 10),
    'q_p50': percentile(metrics.q, 50),
    **of_clients,
    'seconds': seconds,
    'rss_mb': metrics_log.rss_mb(),
    'workers': workers and workers.alive,
    'workers_lost': workers and workers.lost,
    'bytes_to_workers': workers and workers.bytes_sent,
    'bytes_from_workers': workers and workers.bytes_received,
    'missing': wire and len(metrics.missing),
    'wire_bytes_up': wire and wire.bytes_up,
    'wire_bytes_down': wire and wire.bytes_down,
  }


@contextlib.contextmanager
def reporter(
  rounds: int, done: int, progress: bool | None
) -> Iterator[Callable[[Row], None]]:
  """Shows a progress bar where users see it; else logs about ten lines."""
  options = {'total': rounds, 'initial': done, 'unit': 'round'}
  every = max(1, rounds // 10)
  with console.progress_bar(progress, **options) as bar:

    def report(row: Row) -> None:
      summary = _summary(row)
      bar.set_postfix(summary, refresh=False)
      bar.update()
      if bar.disable and progress is None and row['round'] % every == 0:
        text = ', '.join(f'{name} {value}' for name, value in summary.items())
        logging.info('round %d of %d: %s', row['round'], rounds, text)

    yield report


def _summary(row: Row) -> dict[str, str]:
  """Returns what a line or a progress bar shows of a row."""
  fixed = set(metrics_log.COLUMNS)
  summary = {}
  if row['test_accuracy'] is not None:
    summary['accuracy'] = format(row['test_accuracy'], '.1%')
  loss = 'test_loss' if row['test_loss'] is not None else 'train_loss'
  name = loss.removeprefix('test_').replace('_', ' ')
  summary[name] = format(row[loss], '.3f')
  for column, value in row.items():
    own = column.startswith('test_') and column not in fixed
    if own and value is not None:
      summary[column.removeprefix('test_')] = format(value, '.3g')
  summary['p'] = format(row['p'], '.3f')
  summary['uploads'] = f'{row["uploaded"]}/{row["selected"]}'
  if row['workers'] is not None:
    lost = f' ({row["workers_lost"]} lost)' if row['workers_lost'] else ''
    summary['workers'] = f'{row["workers"]}{lost}'
  if row['missing']:
    summary['missing'] = str(row['missing'])
  return summary
