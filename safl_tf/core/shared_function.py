"""Compiled functions that equal graphs share.

A function is traced for each run; XLA takes much longer to compile the trace.
Runs that differ in seeds, data or learning rate have equal graphs, and so the
later ones call the function that XLA has compiled for the first.
"""

import collections
import threading
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from safl_tf.core import graph_key

_MAX_FUNCTIONS = 32
# Digest of a graph -> its first function, the latest used last. Functions hold
# what they capture, which are variables and slots, but no arguments.
_functions: collections.OrderedDict[str, Any] = collections.OrderedDict()
_lock = threading.Lock()


class SharedFunction:
  """A function of tensors, traced in its first call.

  Args:
    function: takes and returns nested tensors. Large arrays should be
      arguments: what it captures may outlive it.
    signature: the TensorSpecs of its arguments, without None.
    jit_compile: whether XLA compiles it.
  """

  def __init__(
    self, function: Callable[..., Any], signature: Any, jit_compile: bool
  ):
    self._function = tf.function(
      function,
      input_signature=signature,
      jit_compile=jit_compile,
      autograph=False,
    )
    self._dtypes = [spec.dtype for spec in tf.nest.flatten(signature)]
    self._call: Callable[[list[tf.Tensor]], Any] | None = None
    self._captures: list[tf.Tensor] = []
    self._tracing = threading.Lock()

  def __call__(self, *args: Any) -> Any:
    """Calls the function."""
    self.trace()
    assert self._call is not None
    values = zip(tf.nest.flatten(args), self._dtypes, strict=True)
    tensors = [tf.convert_to_tensor(*value) for value in values]
    return self._call(tensors + self._captures)

  def trace(self) -> None:
    """Traces the function, unless it is, and finds an equal one."""
    with self._tracing:
      if self._call is None:
        own = self._function.get_concrete_function()
        self._captures = own.captured_inputs
        self._call = _first(own).inference_fn.call_preflattened

  @property
  def num_traces(self) -> int:
    """The number of traces."""
    return self._function.experimental_get_tracing_count()


def _first(concrete: Any) -> Any:
  """Returns the first function with the graph of this one."""
  key = graph_key.of(concrete)
  if key is None:
    return concrete
  with _lock:
    first = _functions.setdefault(key, concrete)
    _functions.move_to_end(key)
    if len(_functions) > _MAX_FUNCTIONS:
      _functions.popitem(last=False)
  return first
