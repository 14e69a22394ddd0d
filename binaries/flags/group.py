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
  """Base class of flag groups; fields without a help text are not flags."""

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
        _define(flags, cls.topic, field)

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
) -> Any:
  """A number in [low, high]."""
  check = lambda name, value: validation.real(name, value, low, high)
  return _field(default, description, absl_flags.DEFINE_float, check)


def positive(
  default: float | None, description: str, high: float = math.inf
) -> Any:
  """A number in (0, high]."""
  check = lambda name, value: validation.real(name, value, 0, high, True)
  return _field(default, description, absl_flags.DEFINE_float, check)


def integer(
  default: int | None, description: str, low: float = 1, high: float = math.inf
) -> Any:
  """An integer in [low, high]."""
  check = lambda name, value: validation.integer(name, value, low, high)
  return _field(default, description, absl_flags.DEFINE_integer, check)


def seed() -> Any:
  """The seed of a program."""
  return integer(0, 'Seed of all random draws.', 0, MAX_SEED)


def choice(default: str | None, names: Sequence[str], description: str) -> Any:
  """One of several names."""
  check = lambda name, value: validation.choice(name, value, names)
  described = f'{description} One of {", ".join(names)}.'
  return _field(default, described, absl_flags.DEFINE_string, check)


def folder(description: str) -> Any:
  """An existing folder."""

  def check(name: str, value: str) -> None:
    if not os.path.isdir(os.path.expanduser(value)):
      raise errors.InputError(name, value, 'must be an existing folder')

  return _field(None, description, absl_flags.DEFINE_string, check)


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


def _field(
  default: Any,
  description: str,
  define: Callable[..., Any],
  check: Callable[[str, Any], Any] | None = None,
) -> Any:
  metadata = {'help': description, 'define': define, 'check': check}
  return dataclasses.field(default=default, metadata=metadata)


def _define(
  flags: absl_flags.FlagValues, topic: str, field: dataclasses.Field
) -> None:
  name, options = field.name, field.metadata
  options['define'](
    name, field.default, options['help'], flag_values=flags, module_name=topic
  )

  def is_valid(value: Any) -> bool:
    try:
      if value is not None and options['check']:
        options['check'](name, value)
    except errors.InputError as error:
      raise absl_flags.ValidationError(error.hint) from error
    return True

  absl_flags.register_validator(name, is_valid, flag_values=flags)
