"""Writes the global model of a run as a SavedModel and a .keras file.

  safl-export --run=runs/safl_mnist_sample

The SavedModel takes images as they are (uint8) and gives class probabilities;
the .keras file is the plain Keras model. Both are loaded again by a process
that doesn't know safl_tf, and their predictions compared, before they count.
"""

from binaries import common
from safl_tf.util import choices

FLAGS = common.Flags()

FLAGS.text('run', None, 'The folder of a run; required.')
FLAGS.text('output', None, "Where to write; the run's export/ folder.")
FLAGS.choice(
  'format',
  'both',
  [name for name in choices.EXPORTS if name != 'none'],
  'What to write.',
)
