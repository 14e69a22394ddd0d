"""Flag groups: frozen dataclasses whose fields are flags.

  class Attack(Group, topic='attack'):
    attack: str = choice('none', ATTACKS, 'Behaviour of malicious clients.')

`Attack.define(flags)` adds the flags to a program under the heading "attack",
`Attack.get(flags)` reads their values.
"""

import dataclasses
import math
import os
from collections.abc import Callable, Collection, Sequence
from typing import Any, ClassVar, Self, TypeVar

from absl import flags as absl_flags

from safl_tf.util import errors, validation

MAX_SEED = 2**63 - 1

_T = TypeVar('_T')


@dataclasses.dataclass(frozen=True)
class Group:
  """Base class of flag groups; fields with a plain default are not flags."""

  topic: ClassVar[str]

  def __init_subclass__(cls, topic: str = '') -> None:
    super().__init_subclass__()
    cls.topic = topic

  @classmethod
  def define(
    cls, flags: absl_flags.FlagValues, omit: Collection[str] = ()
  ) -> None:
    """Adds the flags of this group to a program, except those in `omit`."""
    for field in dataclasses.fields(cls):
      if field.metadata and field.name not in omit:
        field.metadata['add'](flags, cls.topic, field.name)

  @classmethod
  def get(cls, flags: absl_flags.FlagValues, **values: Any) -> Self:
    """Returns the group with the values of the flags, or those given here."""
    for field in dataclasses.fields(cls):
      if field.metadata and field.name not in values:
        values[field.name] = flags[field.name].value
    return cls(**values)


def text(default: str | None, description: str) -> Any:
  """A string flag."""
  return _field(default, description, absl_flags.DEFINE_string)


def boolean(default: bool | None, description: str) -> Any:
  """A flag written as --name or --noname."""
  return _field(default, description, absl_flags.DEFINE_bool)


def real(
  default: float | None,
  description: str,
  low: float = 0,
  high: float = math.inf,
  open_low: bool = False,
) -> Any:
  """A number in [low, high], or (low, high] with `open_low`."""
  limits = (low, high, open_low)
  define = absl_flags.DEFINE_float
  return _field(default, description, define, validation.real, *limits)


def positive(
  default: float | None, description: str, high: float = math.inf
) -> Any:
  """A number in (0, high]."""
  return real(default, description, 0, high, open_low=True)


def integer(
  default: int | None, description: str, low: int = 1, high: float = math.inf
) -> Any:
  """An integer in [low, high]."""
  define = absl_flags.DEFINE_integer
  return _field(default, description, define, validation.integer, low, high)


def seed() -> Any:
  """The seed of a program."""
  return integer(0, 'Seed of all random draws.', 0, MAX_SEED)


def choice(default: str | None, names: Sequence[str], description: str) -> Any:
  """One of several names."""
  description += f' One of {", ".join(names)}.'
  define = absl_flags.DEFINE_string
  return _field(default, description, define, validation.choice, names)


def folder(description: str) -> Any:
  """An existing folder."""
  return _field(None, description, absl_flags.DEFINE_string, _check_folder)


def required(flags: absl_flags.FlagValues, name: str) -> str:
  """Returns the value of a flag that must be given, with ~ expanded."""
  if not flags[name].value:
    raise errors.InputError(name, '', 'is required; see --help')
  return os.path.expanduser(flags[name].value)


def parse_list(
  name: str, value: str, parse: Callable[[str], _T]
) -> tuple[_T, ...]:
  """Parses a comma-separated list without duplicates."""
  items = tuple(parse(item.strip()) for item in value.split(','))
  for item in items:
    if items.count(item) > 1:
      raise errors.InputError(name, value, f'{item} must occur only once')
  return items


def parse_integers(
  name: str, value: str, low: int, high: int
) -> tuple[int, ...]:
  """Parses a comma-separated list of integers without duplicates."""

  def parse(item: str) -> int:
    number = int(item) if item.lstrip('-').isdecimal() else item
    return validation.integer(name, number, low, high)

  return parse_list(name, value, parse)


def help_text(flags: absl_flags.FlagValues) -> str:
  """Returns the flags of a program under the headings of their groups."""
  lines = []
  for topic, members in flags.flags_by_module_dict().items():
    lines.append(f'\n{topic}:')
    for flag in members:
      name = f'[no]{flag.name}' if flag.boolean else flag.name
      described = f'--{name}: {flag.help}'
      if flag.default is not None:  # after a space that lines do not break at
        described += f' (default:\xa0{flag.default})'
      wrapped = absl_flags.text_wrap(described, None, '    ', '  ')
      lines.append(wrapped.replace('\xa0', ' '))
  return '\n'.join(lines)


def _check_folder(name: str, value: str) -> None:
  if not os.path.isdir(os.path.expanduser(value)):
    raise errors.InputError(name, value, 'must be an existing folder')


def _field(
  default: Any,
  description: str,
  define: Callable[..., Any],
  check: Callable[..., Any] | None = None,
  *limits: Any,
) -> Any:
  """Returns a field whose metadata hold a function that adds its flag."""

  def add(flags: absl_flags.FlagValues, topic: str, name: str) -> None:
    define(name, default, description, flag_values=flags, module_name=topic)

    @absl_flags.validator(name, flag_values=flags)
    def is_valid(value: Any) -> bool:
      try:
        if value is not None and check:
          check(name, value, *limits)
      except errors.InputError as error:
        raise absl_flags.ValidationError(error.hint) from error
      return True

  return dataclasses.field(default=default, metadata={'add': add})
