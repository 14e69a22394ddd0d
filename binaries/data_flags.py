"""The flags for one's own data and for speech, which several programs have."""

from absl import flags as absl_flags

from binaries import common
from safl_tf.data.files import spec
from safl_tf.util import choices

# Flags defined here belong to the module that calls `define`.
absl_flags.disclaim_key_flags()


def define(flags: common.Flags, most: float, ending: str) -> None:
  """Gives a program these flags.

  Args:
    flags: the program's.
    most: the largest --test_fraction.
    ending: of what --test_fraction says of itself.
  """
  flags.folder('speech_dir', None, spec.HELP['speech_dir'])
  flags.choice(
    'speech_words', None, choices.SPEECH_WORDS, spec.HELP['speech_words']
  )
  for name in ('label_column', 'client_column', 'image_size'):
    flags.text(name, None, spec.HELP[name])
  flags.real(
    'test_fraction',
    None,
    f'{spec.HELP["test_fraction"]}{ending}',
    low=0,
    high=most,
    open_low=True,
  )
