"""Tables of what was found: every number, and a summary in plain words."""

import csv
import io
from collections.abc import Sequence
from typing import Any

from safl_tf.experiments.theory import comparisons as comparisons_lib

_ABOUT = {
  '(16)': 'the main theorem',
  'remark': "(16) without its last factor, the remark's ασ̄²/(nμ)",
  'Jensen': 'what is left of the proofs without the step that fails',
  '(17)': 'the corollary, rates α₀/(t+1)',
  '(20)': 'the quasi-convex theorem, rates α₀/(t+1)',
}
_NOTES = (
  'Error/bound is the largest measured in a run, at that t; beside it is the '
  'largest exact one, where the error has a closed form. A bound holds if the '
  'measured error nowhere exceeds it by more than '
  f'{comparisons_lib.CERTAIN:g} standard errors, and the exact one not at all. '
  '"Conditions" are the paper\'s: for (16) and its remark those on ε and p in '
  'the proof, with c1 = 1/2; for (17) that also the first rate, α₀/2, is below '
  '1/(2λ-μ).'
)
_SUMMARY = (
  'study',
  'setting',
  'bound',
  'conditions',
  'error/bound',
  'at t',
  'exact',
  'holds',
)


def to_csv(comparisons: Sequence[comparisons_lib.Comparison]) -> str:
  """A line for every setting, bound and t."""
  text = io.StringIO()
  rows = [row for found in comparisons for row in _rows(found)]
  writer = csv.DictWriter(text, list(rows[0]), lineterminator='\n')
  writer.writeheader()
  writer.writerows(rows)
  return text.getvalue()


def _rows(found: comparisons_lib.Comparison) -> list[dict[str, Any]]:
  setting = found.case.setting
  told = {
    'study': found.case.study,
    'setting': found.case.name,
    'n': setting.n,
    'mu': setting.mu,
    'lambda': setting.lam,
    'wave': setting.wave,
    'alpha': '' if setting.decaying else setting.rate,
    'alpha0': setting.rate if setting.decaying else '',
    'epsilon': setting.epsilon,
    'p': setting.p if setting.temperature is None else '',
    'temperature': setting.temperature or '',
    'q': setting.q,
    'bound_name': found.bound_name,
    'conditions': 'met' if found.met else 'not met',
  }
  exact = [''] * len(found.t)
  if found.exact is not None:
    exact = [f'{value:.6g}' for value in found.exact]
  return [
    {
      **told,
      't': int(t),
      'mse': f'{mse:.6g}',
      'standard_error': f'{error:.3g}',
      'exact': known,
      'bound': f'{bound:.6g}',
      'holds': _yes(holds),
    }
    for t, mse, error, known, bound, holds in zip(
      found.t,
      found.mse,
      found.error,
      exact,
      found.bound,
      found.holds,
      strict=True,
    )
  ]


def summary(
  comparisons: Sequence[comparisons_lib.Comparison],
) -> list[tuple[str, ...]]:
  """A heading, and a row for every setting and bound.

  Error/bound is the largest of a run, at t; 'exact' the largest exact one.
  """
  rows: list[tuple[str, ...]] = [_SUMMARY]
  for found in comparisons:
    i, exact = int(found.ratio.argmax()), found.exact_ratio
    rows.append(
      (
        found.case.study,
        found.case.name,
        found.bound_name,
        'met' if found.met else 'not met',
        f'{found.ratio[i]:.3f}',
        str(found.t[i]),
        '' if exact is None else f'{exact.max():.3f}',
        _yes(bool(found.holds.all())),
      )
    )
  return rows


def counts(comparisons: Sequence[comparisons_lib.Comparison]) -> list[str]:
  """A sentence for each bound: how often it holds."""
  told = []
  for name, about in _ABOUT.items():
    # A setting may be in several studies.
    of_bound = {c.case.setting: c for c in comparisons if c.bound_name == name}
    for met, words in ((True, 'are met'), (False, 'are not met')):
      some = [c for c in of_bound.values() if c.met == met]
      if some:
        held = sum(bool(c.holds.all()) for c in some)
        told.append(
          f'{name}, {about}: holds in {held} of {len(some)} settings where the '
          f"paper's conditions {words}."
        )
  return told


def to_text(rows: Sequence[Sequence[str]]) -> str:
  """Rows in aligned columns."""
  widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
  lines = [
    '  '.join(f'{cell:<{w}}' for cell, w in zip(row, widths, strict=True))
    for row in rows
  ]
  return '\n'.join(line.rstrip() for line in lines)


def to_markdown(
  comparisons: Sequence[comparisons_lib.Comparison],
  command: str,
  pictures: Sequence[str],
) -> str:
  """The report: sentences, the summary as a table, and pictures.

  Args:
    comparisons: what was found.
    command: what was run, in a line.
    pictures: file names.
  """
  rows = summary(comparisons)
  table = [rows[0], ('---',) * len(rows[0]), *rows[1:]]
  return '\n'.join(
    [
      '# Measured errors beside the bounds',
      '',
      command,
      '',
      *(f'- {sentence}' for sentence in counts(comparisons)),
      '',
      _NOTES,
      '',
      *(f'| {" | ".join(row)} |' for row in table),
      '',
      *(f'![{name}]({name})' for name in pictures),
      '',
    ]
  )


def _yes(value: bool) -> str:
  return 'yes' if value else 'no'
