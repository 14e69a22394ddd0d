"""Findings on what SAFL's lead over FedAvg depends on; not in the paper."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from safl_tf.experiments.paper import claims, run_stats
from safl_tf.experiments.paper import results as results_lib
from safl_tf.reporting import plots

_ROUND = 50
_TOLD = {
  'init_shared': 'one initial model for all',
  'loss_mean': 'loss averaged, not summed',
  'adam': 'Adam',
  'momentum': 'momentum 0.9',
}


class Pair(NamedTuple):
  """FedAvg and SAFL in the same setting.

  Attributes:
    told: the setting.
    rate: α on the mean loss of a batch.
    n: the clients.
    fedavg: its runs.
    safl: its runs.
  """

  told: str
  rate: float
  n: int
  fedavg: run_stats.Runs
  safl: run_stats.Runs

  @property
  def lead(self) -> float | None:
    """SAFL's lead in the round looked at."""
    a, b = self.safl.at(_ROUND), self.fedavg.at(_ROUND)
    return None if a is None or b is None else a.mean - b.mean

  @property
  def largest(self) -> tuple[int | None, float | None]:
    """The round with SAFL's largest lead, and that lead, if there is one."""
    return claims.largest_lead(self.safl, self.fedavg)


def sensitivity(
  results: run_stats.Results, every: Mapping[str, Any]
) -> results_lib.Outcome:
  """SAFL's lead against the rate and n, and in other settings.

  Args:
    results: of the experiment.
    every: all of `paper_numbers.json`.
  """
  pairs = _pairs(results)
  lines = [['', 'FedAvg (%)', 'SAFL (%)', 'lead', 'largest lead', 'in round']]
  for pair in pairs.values():
    t, largest = pair.largest
    lines.append(
      [
        pair.told,
        run_stats.percent(pair.fedavg.at(_ROUND)),
        run_stats.percent(pair.safl.at(_ROUND)),
        _points(pair.lead),
        _points(largest),
        '-' if t is None else str(t),
      ]
    )
  title = f'Accuracy in round {_shown(results)}, leads in points'
  return results_lib.Outcome(
    [results_lib.Table(title, lines)],
    _charts(results, pairs, paper_leads(every)),
    [_seen(pair) for pair in pairs.values()],
    [],
  )


def paper_leads(every: Mapping[str, Any]) -> dict[int, float]:
  """The lead in round 50 that the paper's own tables have, by n."""
  table3 = every['early_accuracy']['mnist']
  table4 = every['epsilon_temperature']
  safl = table4['safl']['0.3']['80']['accuracy']
  return {
    50: safl - table4['fedavg']['accuracy'],
    80: table3['safl']['top1'] - table3['fedavg']['top1'],
  }


def _pairs(results: run_stats.Results) -> dict[str, Pair]:
  """Settings of which both algorithms are finished, by name."""
  found = {}
  for safl in results.where(algorithm='safl'):
    name = safl.part.cell['setting']
    fedavg = results.get(algorithm='fedavg', setting=name)
    if fedavg is None:
      continue
    n, rate = safl.part.flags['num_clients'], _rate(safl.part.flags)
    told = {
      '': f'n = {n}, rate {rate:g}',
      'n': f'n = {n}',
      'rate': f'rate {rate:g}',
    }.get(safl.part.cell['vary'], _TOLD.get(name, name))
    found[name] = Pair(told, rate, n, fedavg, safl)
  return found


def _rate(flags: Mapping[str, Any]) -> float:
  """α on the mean loss of a batch."""
  summed = flags.get('loss_reduction', 'sum') == 'sum'
  return flags['learning_rate'] * (flags['batch_size'] if summed else 1)


def _shown(results: run_stats.Results) -> str:
  """The round looked at, in these runs."""
  rounds = {part.round_for(_ROUND) for part in results.plan.parts}
  return '/'.join(map(str, sorted(rounds)))


def _points(lead: float | None) -> str:
  """A lead as '+24.5', never '-0.0'; '-' if there is none."""
  if lead is None:
    return '-'
  return f'{round(100 * lead, 1) + 0.0:+.1f}'


def _seen(pair: Pair) -> claims.Finding:
  """Who is ahead, in words."""
  runs = (pair.fedavg, pair.safl)
  if pair.lead is None:
    return claims.Finding(claims.OPEN, f'{pair.told}: too few rounds were run.')
  if not any(run.has_learned() for run in runs):
    text = f'{pair.told}: nothing was learned.'
    return claims.Finding(claims.SEEN, text)
  points = f'{100 * abs(pair.lead):.1f} points'
  if claims.is_within(pair.lead):
    text = f'SAFL and FedAvg are about as good ({points} apart)'
  else:
    side = 'ahead of' if pair.lead > 0 else 'behind'
    text = f'SAFL is {points} {side} FedAvg'
  return claims.Finding(claims.SEEN, f'{pair.told}: {text}.')


def _charts(
  results: run_stats.Results,
  pairs: Mapping[str, Pair],
  theirs: Mapping[int, float],
) -> dict[str, plots.Chart]:
  """The lead against the rate, and against n with the paper's."""
  vary = {p.cell['setting']: p.cell['vary'] for p in results.plan.parts}
  base = results.plan.parts[0].flags

  def curves(axis: str) -> list[plots.Curve]:
    those = sorted(
      (pair for name, pair in pairs.items() if vary[name] in ('', axis)),
      key=lambda pair: getattr(pair, axis),
    )
    xs = [getattr(pair, axis) for pair in those]
    leads = {
      f'in round {_shown(results)}': [pair.lead for pair in those],
      'the largest, in any round': [pair.largest[1] for pair in those],
    }
    return [_curve(name, xs, ys) for name, ys in leads.items()]

  def chart(title: str, x: str, drawn: Sequence[plots.Curve]) -> plots.Chart:
    y = "SAFL's lead (points)"
    return plots.Chart(title, x, y, drawn, y_max=100.0, signed=True)

  paper = plots.Curve(
    f'in round {_ROUND} of the paper',
    list(theirs),
    [100 * y for y in theirs.values()],
  )
  return {
    'lead_by_rate': chart(
      f'Lead against the rate, n = {base["num_clients"]}',
      'rate on the mean loss',
      curves('rate'),
    ),
    'lead_by_n': chart(
      f'Lead against n, rate {_rate(base):g}',
      'clients n',
      [*curves('n'), paper],
    ),
  }


def _curve(
  name: str, xs: Sequence[float], leads: Sequence[float | None]
) -> plots.Curve:
  """The leads that there are, in points."""
  points = [
    (x, 100 * y) for x, y in zip(xs, leads, strict=True) if y is not None
  ]
  return plots.Curve(name, [x for x, _ in points], [y for _, y in points])
