"""Values in Ray's object store, from which each node fetches them once."""

import functools
import uuid
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

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


class _Stored(NamedTuple):
  """What is in Ray's store: a reference, its bytes, and who has fetched it."""

  ref: Any
  nbytes: int
  nodes: set[str]


class ObjectStore:
  """Stores values, and counts the bytes that nodes fetch.

  Attributes:
    bytes_sent: to all nodes so far.
  """

  def __init__(self) -> None:
    self.bytes_sent = 0
    self._values: weakref.WeakKeyDictionary[Published, _Stored] = (
      weakref.WeakKeyDictionary()
    )
    self._arrays: dict[int, tuple[weakref.ref[np.ndarray], _Stored]] = {}

  def reference(self, published: Published, node: str) -> dict[str, Any]:
    """Returns what a worker on a node needs to fetch a value.

    `known` are the values that are still in use; others can be forgotten.
    """
    if published not in self._values:
      pickled = cloudpickle.dumps(published.value)
      self._values[published] = _Stored(ray.put(pickled), len(pickled), set())
    value = self._deliver(self._values[published], node)
    arrays = [self.array_reference(array, node) for array in published.arrays]
    known = [other.key for other in self._values]
    return {'key': published.key, 'refs': [value, *arrays], 'known': known}

  def array_reference(self, array: np.ndarray, node: str) -> Any:
    """Returns a reference to an array, which is stored while it exists."""
    key = id(array)
    known = self._arrays.get(key)
    if known is None or known[0]() is not array:
      forget = functools.partial(self._arrays.pop, key, None)
      stored = _Stored(ray.put(array), array.nbytes, set())
      known = (weakref.ref(array, lambda _: forget()), stored)
      self._arrays[key] = known
    return self._deliver(known[1], node)

  def _deliver(self, stored: _Stored, node: str) -> Any:
    """Returns the reference; counts bytes, as a node fetches them once."""
    if node not in stored.nodes:
      stored.nodes.add(node)
      self.bytes_sent += stored.nbytes
    return stored.ref
