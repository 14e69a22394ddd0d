"""Flags of the table that compares runs."""

import dataclasses
from collections.abc import Sequence

from absl import flags as absl_flags

from .group import Group, parse_integers, real, text


@dataclasses.dataclass(frozen=True)
class Report(Group, topic='report'):
  """The columns of the table."""

  at_rounds: str | None = text(
    None,
    'Rounds to report the accuracy at, separated by commas; a quarter, half '
    'and three quarters of the rounds if not given.',
  )
  target_accuracy: float = real(
    0.9, 'Test accuracy to which rounds and megabytes are counted.'
  )


def at_rounds(flags: absl_flags.FlagValues, rounds: int) -> Sequence[int]:
  """Returns the rounds to report the accuracy at, of so many rounds."""
  from safl_tf.reporting import tables

  if flags.at_rounds is None:
    return tables.quarters(rounds)
  return sorted(parse_integers('at_rounds', flags.at_rounds, 1, rounds))
