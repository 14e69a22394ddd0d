"""Conditions: with which values of other flags a flag has an effect.

  nu: float = real(0.5, '...', when=When(algorithm=('extended_safl',)))

`|` joins alternatives. Data sets, partitions and models that name a file are
written as in `kind`.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from safl_tf.data.files import spec
from safl_tf.util import choices

_FORMS = {form.partition(':')[0]: form for form in choices.DATASET_FORMS}


class Others(tuple[str | None, ...]):
  """All values except these."""

  def __contains__(self, value: object) -> bool:
    return not super().__contains__(value)

  def __str__(self) -> str:
    return f'other than {", ".join(map(str, self))}'


class When:
  """The values of other flags with which a flag has an effect.

  Args:
    **case: flag -> values; all must hold.
  """

  def __init__(self, **case: Collection[Any]):
    self.cases: tuple[Mapping[str, Collection[Any]], ...] = (case,)

  def __or__(self, other: 'When') -> 'When':
    both = When()
    both.cases = (*self.cases, *other.cases)
    return both

  def __str__(self) -> str:
    return _format(self.cases, lambda flag: flag)

  def hint(
    self,
    values: Mapping[str, Collection[Any]],
    names: Mapping[str, str] | None = None,
  ) -> str | None:
    """Says why a flag has no effect; None if it has one.

    Args:
      values: flag -> its values; several if a program runs with each of them.
      names: flag -> its name in this program, if that is another one.
    """
    name = lambda flag: (names or {}).get(flag, flag)
    unmet = [
      {
        flag: allowed
        for flag, allowed in case.items()
        if not any(kind(flag, value) in allowed for value in values[flag])
      }
      for case in self.cases
    ]
    if not all(unmet):
      return None
    given = {
      f'--{name(flag)}={",".join(map(_text, values[flag]))}': None
      for case in unmet
      for flag in case
    }
    needed = _format(unmet, name)
    return f'has no effect with {" and ".join(given)}; it is for {needed}'


def kind(flag: str, value: Any) -> Any:
  """Returns 'csv:FILE', 'manifest:FILE', 'FILE.keras' or the value itself."""
  if flag in ('data', 'dataset'):
    return _FORMS.get(spec.split(value or '')[0], value)
  if flag == 'partition' and str(value).startswith('manifest:'):
    return 'manifest:FILE'
  if flag == 'model' and value.endswith('.keras'):
    return 'FILE.keras'
  return value


def _format(
  cases: Collection[Mapping[str, Collection[Any]]], name: Callable[[str], str]
) -> str:
  """Formats cases as '--a=x, y and --b=z or --a=v'."""

  def condition(flag: str, allowed: Collection[Any]) -> str:
    if tuple(allowed) == (None,):
      is_given = isinstance(allowed, Others)
      return f'--{name(flag)}' if is_given else f'no --{name(flag)}'
    if isinstance(allowed, Others):
      return f'--{name(flag)} {allowed}'
    return f'--{name(flag)}={", ".join(map(_text, allowed))}'

  return ' or '.join(
    ' and '.join(condition(flag, allowed) for flag, allowed in case.items())
    for case in cases
  )


def _text(value: Any) -> str:
  return str(value).lower() if isinstance(value, bool) else str(value)
