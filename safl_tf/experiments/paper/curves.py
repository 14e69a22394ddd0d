"""Findings of the experiments that the paper shows as curves."""

from collections.abc import Sequence

from safl_tf.experiments.paper import claims, run_stats
from safl_tf.experiments.paper import results as results_lib
from safl_tf.reporting import plots

_PAIR = ('fedavg', 'safl')
_GROUPS = {'without': 'without biased clients', 'with': 'with biased clients'}


def convergence(
  results: run_stats.Results, numbers: results_lib.Numbers
) -> results_lib.Outcome:
  """Accuracy by round for n = 40, 80 and 120, and the centralised level."""
  return _pairs(
    results,
    numbers,
    'n',
    (40, 80, 120),
    (20, 35, 50, 56, 70, 100),
    level=True,
  )


def fraction(
  results: run_stats.Results, numbers: results_lib.Numbers
) -> results_lib.Outcome:
  """Accuracy by round for R = 0.3, 0.5 and 0.7."""
  return _pairs(
    results,
    numbers,
    'fraction',
    (0.3, 0.5, 0.7),
    (20, 30, 50, 70, 100),
  )


def _pairs(
  results: run_stats.Results,
  numbers: results_lib.Numbers,
  key: str,
  values: Sequence[float],
  rounds: Sequence[int],
  level: bool = False,
) -> results_lib.Outcome:
  """FedAvg and SAFL for each value of a setting, a chart for each."""
  charts: dict[str, plots.Chart] = {}
  named: dict[str, run_stats.Runs] = {}
  for value in values:
    cell = {key: value}
    runs = results.where(**cell)
    label = run_stats.where(key, value, runs[0].part if runs else None)
    drawn = [
      results_lib.curve(results, {'algorithm': a, **cell}) for a in _PAIR
    ]
    if level:
      last = results_lib.last_round(results, **cell)
      drawn.append(results_lib.level(results, last))
    name = f'accuracy_{"R" if key == "fraction" else key}{value:g}'
    charts[name] = results_lib.accuracy_chart(label, drawn)
    named |= {f'{run.name}, {label}': run for run in runs}
  central = results.get(algorithm='centralized')
  table = results_lib.accuracy_table('Accuracy by round', named, rounds)
  if central is not None:
    blanks = [''] * (len(table.lines[0]) - 4)
    final = run_stats.percent(central.final())
    table.lines.append([central.name, *blanks, final, '', ''])
  findings = results_lib.check_all(numbers, results)
  return results_lib.Outcome([table], charts, findings, [])


def techniques(
  results: run_stats.Results, numbers: results_lib.Numbers
) -> results_lib.Outcome:
  """Accuracy by round of all techniques."""
  names = [part.cell['algorithm'] for part in results.plan.parts]
  drawn = [results_lib.curve(results, {'algorithm': name}) for name in names]
  chart = results_lib.accuracy_chart('Test accuracy by round', drawn)
  named = {runs.name: runs for runs in results.runs}
  rounds = (10, 20, 30, 40, 50, 70, 100)
  table = results_lib.accuracy_table('Accuracy by round', named, rounds)
  findings = results_lib.check_all(numbers, results)
  return results_lib.Outcome([table], {'accuracy': chart}, findings, [])


def biased(
  results: run_stats.Results, numbers: results_lib.Numbers
) -> results_lib.Outcome:
  """What clients with one digit cost each algorithm."""
  names = (*_PAIR, 'extended_safl')
  charts = {
    f'accuracy_{group}': results_lib.accuracy_chart(
      told[0].upper() + told[1:],
      [
        results_lib.curve(results, {'algorithm': name, 'group': group})
        for name in names
      ],
    )
    for group, told in _GROUPS.items()
  }
  lines = [['', *(f'{told} (%)' for told in _GROUPS.values()), 'lost (points)']]
  for name in names:
    runs = [results.get(algorithm=name, group=group) for group in _GROUPS]
    finals = [run and run.final() for run in runs]
    loss = _loss(results, name)
    lost = '-' if loss is None else f'{100 * loss:.1f}'
    shown = [run_stats.percent(final) for final in finals]
    lines.append([run_stats.NAMES[name], *shown, lost])
  table = results_lib.Table('Accuracy in the last round', lines)
  findings = [_degraded(claim, results) for claim in numbers['claims']]
  return results_lib.Outcome([table], charts, findings, [])


def _loss(results: run_stats.Results, name: str) -> float | None:
  """How much accuracy is lost with biased clients, in the last round."""
  runs = [results.get(algorithm=name, group=group) for group in _GROUPS]
  without, with_them = (run and run.final() for run in runs)
  if without is None or with_them is None:
    return None
  return without.mean - with_them.mean


def _degraded(
  claim: results_lib.Numbers, results: run_stats.Results
) -> claims.Finding:
  """Whether an algorithm suffers from biased clients, as the paper says."""
  name, told = claim['algorithm'], run_stats.NAMES[claim['algorithm']]
  loss = _loss(results, name)
  without = results.get(algorithm=name, group='without')
  if loss is None or without is None:
    return claims.Finding(claims.OPEN, f'{told}: was not run.')
  if not without.has_learned():
    text = f'{told}: nothing was learned.'
    return claims.Finding(claims.OPEN, text)
  side = 'loses' if loss >= 0 else 'wins'
  ours = f'{told} {side} {100 * abs(loss):.1f} points by biased clients'
  said = 'loses much' if claim['degraded'] else 'loses nothing'
  degraded = loss > 0 and not claims.is_within(loss)
  agrees = degraded is claim['degraded']
  verdict = claims.AGREES if agrees else claims.DIFFERS
  return claims.Finding(verdict, f'{ours}; the paper: {said}.')
