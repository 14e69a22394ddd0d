"""Findings of the experiments on accuracy that the paper shows as tables."""

from safl_tf.experiments.paper import (
  claims,
  paper_table,
  run_stats,
)
from safl_tf.experiments.paper import (
  results as results_lib,
)
from safl_tf.reporting import plots

_SIZES = {'half': 'Half of the data', 'all': 'All of the data'}
_PAIR = ('fedavg', 'safl')
_ALL = ('centralized', *_PAIR)
_TOPS = {'top1': ('top-1', 'accuracy'), 'top5': ('top-5', 'top5')}


def early_accuracy(
  results: run_stats.Results, numbers: results_lib.Numbers
) -> results_lib.Outcome:
  """Top-1 and top-5 accuracy in round 50 on four data sets."""
  rows: dict[str, list[paper_table.Cell]] = {}
  charts, orders, t = {}, [], numbers['round']
  names = [run_stats.NAMES[name] for name in _ALL]
  shown = {k: v for k, v in run_stats.DATA.items() if k not in results.missing}
  for data, told in shown.items():
    cells = [
      paper_table.Cell(
        f'{run_stats.NAMES[name]} on {told}',
        results.get(algorithm=name, dataset=data),
        measure,
        t,
        numbers[data][name][top],
      )
      for name in _ALL
      for top, (_, measure) in _TOPS.items()
    ]
    runs = results.where(dataset=data)
    clients = [run for run in runs if run.part.cell['algorithm'] in _PAIR]
    label = f'{told}, {results_lib.told_round(t, clients)}'
    if not all(run.part.like_paper for run in clients):
      label += ' (smaller)'
    rows[label] = cells
    orders.append(paper_table.order(f'{told}, top-1', names, cells[::2]))
    last = results_lib.last_round(results, dataset=data)
    charts[f'accuracy_{data}'] = results_lib.accuracy_chart(
      told,
      [
        *(
          results_lib.curve(results, {'algorithm': name, 'dataset': data})
          for name in _PAIR
        ),
        results_lib.level(results, last, dataset=data),
      ],
    )
  heads = [
    f'{run_stats.NAMES[name]} {told} (%)'
    for name in _ALL
    for told, _ in _TOPS.values()
  ]
  title = f'Accuracy in round {t}'
  kept = [c for c in numbers['claims'] if c['dataset'] in shown]
  return results_lib.Outcome(
    [paper_table.table(title, ['', *heads], rows)],
    charts,
    [
      *paper_table.near(rows),
      *orders,
      *results_lib.check_all({'claims': kept}, results),
    ],
    paper_table.compared(rows),
  )


def epsilon_temperature(
  results: run_stats.Results, numbers: results_lib.Numbers
) -> results_lib.Outcome:
  """Cost and accuracy in round 50 for several ε and L."""
  rows: dict[str, list[paper_table.Cell]] = {}
  t = numbers['round']
  for epsilon, by_temperature in numbers['safl'].items():
    columns = [
      (run_stats.NAMES[name], results.get(algorithm=name), numbers[name])
      for name in ('centralized', 'fedavg')
    ]
    for L, both in by_temperature.items():
      runs = results.get(
        algorithm='safl', epsilon=float(epsilon), temperature=int(L)
      )
      columns.append((f'SAFL, ε = {epsilon}, L = {L}', runs, both))
    rows[f'ε = {epsilon}'] = [
      paper_table.Cell(what, runs, measure, t, both[measure])
      for what, runs, both in columns
      for measure in ('cost', 'accuracy')
    ]
  names = ['Centralised', 'FedAvg', 'SAFL, L = 10', 'SAFL, L = 80']
  heads = [f'{name} {kind}' for name in names for kind in ('cost', '(%)')]
  shown = results_lib.told_round(t, results.where(algorithm='fedavg'))
  title = f'Test cost and accuracy in {shown}'
  findings = [
    *paper_table.near(rows),
    *(
      paper_table.order(name, names, cells[1::2])
      for name, cells in rows.items()
    ),
    *(_best_cell(claim, rows) for claim in numbers['claims']),
  ]
  return results_lib.Outcome(
    [paper_table.table(title, ['', *heads], rows)],
    _epsilon_charts(results, rows),
    findings,
    paper_table.compared(rows),
  )


def _best_cell(
  claim: results_lib.Numbers, rows: dict[str, list[paper_table.Cell]]
) -> claims.Finding:
  """Whether SAFL is best with the paper's best ε and L, by both measures."""
  best = claim['best']
  wanted = f'SAFL, ε = {best["epsilon"]:g}, L = {best["temperature"]}'
  cells = [
    cell
    for line in rows.values()
    for cell in line
    if cell.what.startswith('SAFL')
  ]
  if any(cell.ours is None for cell in cells):
    return claims.Finding(claims.OPEN, 'Not all of SAFL was run.')
  if not any(cell.runs and cell.runs.has_learned() for cell in cells):
    return claims.Finding(claims.OPEN, 'SAFL: nothing was learned.')
  means = {(c.measure, c.what): c.ours.mean for c in cells if c.ours}
  least = min((k for k in means if k[0] == 'cost'), key=lambda k: means[k])[1]
  most = max((k for k in means if k[0] != 'cost'), key=lambda k: means[k])[1]
  text = f'The least cost has {least}, the best accuracy {most}'
  agrees = least == most == wanted
  verdict = claims.AGREES if agrees else claims.DIFFERS
  return claims.Finding(verdict, f'{text}; the paper: both {wanted}.')


def _epsilon_charts(
  results: run_stats.Results, rows: dict[str, list[paper_table.Cell]]
) -> dict[str, plots.Chart]:
  """Accuracy by round, and the cost against ε, ours and the paper's."""
  by_round = [results_lib.curve(results, {'algorithm': 'fedavg'})]
  for part in results.plan.parts:
    if part.cell['algorithm'] == 'safl':
      told = 'ε = {epsilon:g}, L = {temperature}'.format_map(part.cell)
      by_round.append(results_lib.curve(results, part.cell, told))
  x = [float(name.removeprefix('ε = ')) for name in rows]
  curves = []
  for told, column in (('L = 10', 4), ('L = 80', 6)):
    cells = [line[column] for line in rows.values()]
    known = [(e, c.ours.mean) for e, c in zip(x, cells, strict=True) if c.ours]
    curves += [
      plots.Curve(told, [e for e, _ in known], [y for _, y in known]),
      plots.Curve(f'{told}, paper', x, [cell.paper for cell in cells]),
    ]
  return {
    'accuracy': results_lib.accuracy_chart('Test accuracy by round', by_round),
    'cost': plots.Chart('Test cost against ε', 'ε', 'test cost', curves),
  }


def batch_size(
  results: run_stats.Results, numbers: results_lib.Numbers
) -> results_lib.Outcome:
  """Accuracy by batch size, on half and all of the data."""
  t, charts = numbers['round'], {}
  shown = results_lib.told_round(t, results.runs)
  rows: dict[str, list[paper_table.Cell]] = {}
  for size, told in _SIZES.items():
    curves = []
    for name in _PAIR:
      row = [
        paper_table.Cell(
          f'{run_stats.NAMES[name]}, {size}, B = {B}',
          results.get(algorithm=name, size=size, batch_size=int(B)),
          'accuracy',
          t,
          paper,
        )
        for B, paper in numbers[size][name].items()
      ]
      rows[f'{told}, {run_stats.NAMES[name]}'] = row
      curves += _batch_curves(name, list(map(int, numbers[size][name])), row)
    charts[f'accuracy_{size}'] = results_lib.accuracy_chart(
      f'{told}, {shown}', [*curves[::2], *curves[1::2]], 'batch size'
    )
  heads = [f'B = {B} (%)' for B in numbers['all']['safl']]
  lines = list(rows.values())
  pairs = [
    paper_table.order(f'{size}, B = {B}', ['FedAvg', 'SAFL'], [a, b])
    for size, i in (('Half', 0), ('All', 2))
    for B, a, b in zip(numbers['all']['safl'], *lines[i : i + 2], strict=True)
  ]
  return results_lib.Outcome(
    [paper_table.table(f'Accuracy in {shown}', ['', *heads], rows)],
    charts,
    [
      *paper_table.near(rows),
      *pairs,
      *(
        _small_batches(claim, name, cells, list(numbers['all']['safl']))
        for claim in numbers['claims']
        for name, cells in rows.items()
      ),
    ],
    paper_table.compared(rows),
  )


def _batch_curves(
  name: str, sizes: list[int], row: list[paper_table.Cell]
) -> list[plots.Curve]:
  """An algorithm's accuracy against the batch size: ours, the paper's."""
  known = [(B, c.ours) for B, c in zip(sizes, row, strict=True) if c.ours]
  told = run_stats.NAMES[name]
  return [
    plots.Curve(
      told,
      [B for B, _ in known],
      [100 * value.mean for _, value in known],
      [100 * value.sd for _, value in known if value.sd is not None],
    ),
    plots.Curve(f'{told}, paper', sizes, [100 * c.paper for c in row]),
  ]


def _small_batches(
  claim: results_lib.Numbers,
  name: str,
  cells: list[paper_table.Cell],
  sizes: list[str],
) -> claims.Finding:
  """Whether small batches do better than large ones."""
  better, worse = (
    cells[sizes.index(str(claim[key]))] for key in ('better', 'worse')
  )
  a, b = better.ours, worse.ours
  if a is None or b is None:
    return claims.Finding(claims.OPEN, f'{name}: not all was run.')
  if not any(c.runs and c.runs.has_learned() for c in (better, worse)):
    return claims.Finding(claims.OPEN, f'{name}: nothing was learned.')
  text = f'{name}: {100 * a.mean:.1f} % with B = {claim["better"]}, '
  text += f'{100 * b.mean:.1f} % with B = {claim["worse"]}'
  verdict = claims.AGREES if a.mean > b.mean else claims.DIFFERS
  return claims.Finding(verdict, f'{text}; the paper: better with the former.')
