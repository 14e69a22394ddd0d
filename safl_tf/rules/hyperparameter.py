"""Numbers of rules as inputs of compiled rounds."""

from typing import Any

import tensorflow as tf


def tensor(value: float, dtype: Any) -> tf.Tensor:
  """Returns a number that a traced round captures, in place of a constant.

  So runs with other numbers have equal graphs; see `core.shared_function`.
  """
  with tf.init_scope():
    return tf.constant(value, dtype)
