"""Flag groups: frozen dataclasses whose fields are flags.

  class Attack(Group, topic='attack'):
    attack: str = choice('none', ATTACKS, 'Behaviour of malicious clients.')
    attack_fraction: float = real(0.2, '...', when=When(attack=ATTACKS[1:]))

`Attack.define(flags)` adds the flags to a program under the heading "attack",
`Attack.get(flags)` reads their values. Numbers are checked against
`validation.LIMITS`. A flag with a condition, `when`, is refused if it is given
without having an effect.
"""

import dataclasses
import math
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar, Self, TypeVar

from absl import flags as absl_flags

from safl_tf.util import errors, validation

from .conditions import When

_T = TypeVar('_T')
_PLAIN = re.ASCII | re.IGNORECASE
_REAL = r'[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?'


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

  def to_dict(self) -> dict[str, Any]:
    """Returns all flags by name, as JSON values."""
    # Fields that are not flags are digests of files; None without a file.
    return {
      field.name: value
      for field in dataclasses.fields(self)
      if (value := getattr(self, field.name)) is not None or field.metadata
    }

  def check_effects(
    self,
    flags: absl_flags.FlagValues,
    names: Mapping[str, str] | None = None,
    **several: Collection[Any],
  ) -> None:
    """Refuses flags that the user gave but that have no effect.

    Those of a preset are defaults, and not refused.

    Args:
      flags: of the program.
      names: flag -> its name in this program, if that is another one.
      **several: flags that the program takes several values of; a flag must
        have an effect with one of them.
    """
    for field in dataclasses.fields(self):
      if field.name in flags and flags[field.name].present:
        hint = self._hint(field, names, **several)
        if hint is not None:
          value = getattr(self, field.name)
          raise errors.InputError(field.name, value, hint)

  def hint(self, name: str) -> str | None:
    """Says why a flag has no effect; None if it has one."""
    fields = {field.name: field for field in dataclasses.fields(self)}
    return self._hint(fields[name])

  def unused(self) -> frozenset[str]:
    """Returns the names of the flags that have no effect."""
    fields = dataclasses.fields(self)
    return frozenset(f.name for f in fields if self._hint(f) is not None)

  def without_unused(self, kind: 'type[Group] | None' = None) -> Self:
    """Returns the group with defaults for flags that have no effect.

    `kind` is the group whose flags are meant; all by default.
    """
    config = self
    for field in dataclasses.fields(kind or type(self)):  # in their order:
      if config._hint(field) is not None:  # one may be a condition of another
        config = dataclasses.replace(config, **{field.name: field.default})
    return config

  def _hint(
    self,
    field: dataclasses.Field[Any],
    names: Mapping[str, str] | None = None,
    **several: Collection[Any],
  ) -> str | None:
    when = field.metadata.get('when')
    if when is None:
      return None
    fields = dataclasses.fields(self)
    values = {f.name: (getattr(self, f.name),) for f in fields}
    return when.hint({**values, **several}, names)


class _Number(absl_flags.ArgumentParser):
  """Parses plain decimal numbers, in ASCII."""

  def __init__(self, whole: bool):
    self._whole = whole

  def parse(self, argument: Any) -> Any:
    """Returns the number of a text; the default is one already."""
    if not isinstance(argument, str):
      return argument
    if self._whole:
      return to_integer(argument)
    if not re.fullmatch(_REAL, argument, _PLAIN):
      raise ValueError('must be a number')
    if math.isinf(number := float(argument)):
      raise ValueError('is too large')
    return number

  def flag_type(self) -> str:
    """See the base class."""
    return 'int' if self._whole else 'float'


class _Text(absl_flags.ArgumentParser):
  """Refuses another flag in place of a value."""

  def parse(self, argument: Any) -> Any:
    """Returns the text."""
    if isinstance(argument, str) and argument.startswith('--'):
      raise ValueError('is a flag, not a value')
    return argument

  def flag_type(self) -> str:
    """See the base class."""
    return 'string'


def to_integer(text: str) -> int:
  """Returns the number of a text such as 12, +12 or -3, and of no other."""
  if not re.fullmatch(r'[+-]?\d{1,4000}', text, _PLAIN):
    raise ValueError('must be a whole number')
  return int(text)


def text(
  default: str | None,
  description: str,
  when: When | None = None,
  check: Callable[[str, Any], Any] | None = None,
) -> Any:
  """A string flag."""
  return _field(default, description, _Text(), check, when)


def texts(description: str) -> Any:
  """A string flag that may be given several times; a list."""

  def add(flags: absl_flags.FlagValues, topic: str, name: str) -> None:
    absl_flags.DEFINE_multi_string(
      name, [], description, flag_values=flags, module_name=topic
    )

  metadata = {'add': add, 'when': None, 'names': ()}
  return dataclasses.field(default=(), metadata=metadata)


def boolean(
  default: bool | None, description: str, when: When | None = None
) -> Any:
  """A flag written as --name or --noname."""
  return _field(default, description, None, when=when)


def real(
  default: float | None, description: str, when: When | None = None
) -> Any:
  """A number within its limits."""
  return _field(default, description, _Number(False), validation.limited, when)


def integer(
  default: int | None, description: str, when: When | None = None
) -> Any:
  """A whole number within its limits."""
  return _field(default, description, _Number(True), validation.limited, when)


def seed() -> Any:
  """The seed of a program."""
  return integer(0, 'Seed of all random draws.')


def choice(
  default: str | None,
  names: Sequence[str],
  description: str,
  when: When | None = None,
) -> Any:
  """One of several names."""
  description += f' One of {", ".join(names)}.'
  check = lambda name, value: validation.choice(name, value, names)
  return _field(default, description, _Text(), check, when, names)


def folder(description: str, when: When | None = None) -> Any:
  """An existing folder."""
  return _field(None, description, _Text(), _check_folder, when)


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
    try:
      number: int | str = to_integer(item)
    except ValueError:
      number = item
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
  parser: absl_flags.ArgumentParser | None,
  check: Callable[[str, Any], Any] | None = None,
  when: When | None = None,
  names: Sequence[str] = (),
) -> Any:
  """Returns a field that is a flag.

  Its metadata are a function `add` that adds the flag to a program, its
  condition `when` and the `names` to choose from, if any.
  """
  if when is not None:
    description += f' Only with {when}.'

  def add(flags: absl_flags.FlagValues, topic: str, name: str) -> None:
    options = {'flag_values': flags, 'module_name': topic}
    if parser is None:
      absl_flags.DEFINE_bool(name, default, description, **options)
    else:
      serializer = absl_flags.ArgumentSerializer()
      absl_flags.DEFINE(
        parser, name, default, description, serializer=serializer, **options
      )

    @absl_flags.validator(name, flag_values=flags)
    def is_valid(value: Any) -> bool:
      try:
        if value is not None and check:
          check(name, value)
      except errors.InputError as error:
        raise absl_flags.ValidationError(error.hint) from error
      return True

  metadata = {'add': add, 'when': when, 'names': names}
  return dataclasses.field(default=default, metadata=metadata)
