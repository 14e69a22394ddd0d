"""Values in Ray's object store, from which each node fetches them once."""

import functools
import uuid
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import ray
from ray import cloudpickle


class Published:
  """A value for workers, with arrays beside it.

  Attributes:
    key: its name.
    value: any value.
    arrays: large ones; an array of several values is stored once.
  """

  def __init__(self, value: Any, arrays: Sequence[np.ndarray] = ()):
    self.key = uuid.uuid4().hex
    self.value = value
    self.arrays = arrays


class ObjectStore:
  """Stores values, and counts the bytes that nodes fetch.

  Attributes:
    bytes_sent: to all nodes so far.
  """

  def __init__(self) -> None:
    self.bytes_sent = 0
    self._values: dict[str, Any] = {}
    self._arrays: dict[int, tuple[weakref.ref[np.ndarray], Any]] = {}
    self._delivered: set[tuple[str, str]] = set()

  def reference(self, published: Published, node: str) -> dict[str, Any]:
    """Returns what a worker on a node needs to fetch a value."""
    key = published.key
    if key not in self._values:
      self._values[key] = ray.put(cloudpickle.dumps(published.value))
    arrays = [self.array_reference(array, node) for array in published.arrays]
    return {'key': key, 'refs': [self._values[key], *arrays]}

  def array_reference(self, array: np.ndarray, node: str) -> Any:
    """Returns a reference to an array, which is stored while it exists."""
    key = id(array)
    known = self._arrays.get(key)
    if known is None or known[0]() is not array:
      forget = functools.partial(self._arrays.pop, key, None)
      known = (weakref.ref(array, lambda _: forget()), ray.put(array))
      self._arrays[key] = known
    ref = known[1]
    delivery = (node, ref.hex())
    if delivery not in self._delivered:
      self._delivered.add(delivery)
      self.bytes_sent += array.nbytes
    return ref
