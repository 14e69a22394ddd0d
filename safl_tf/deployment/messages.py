"""The messages between server and clients, as bytes: JSON and arrays.

A message is a magic number, the length of a JSON text, the text, and the bytes
of the arrays that the text lists. Nothing is pickled, so that a message can
carry data but no code.
"""

import json
import math
import re
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from safl_tf.util import atomic_io

PROTOCOL = 1  # of this module and of what `client` and `server` exchange
_MAGIC = b'SAFLMSG1'
_LENGTH = struct.Struct('<I')
_KINDS = 'biufV'  # bfloat16 is V
_TYPE = re.compile('[a-z][a-z0-9_]*')  # np.dtype parses more than names


class DamagedError(Exception):
  """Bytes that are no message."""


class Message(NamedTuple):
  """A message.

  Attributes:
    header: JSON values by name.
    arrays: arrays by name.
  """

  header: dict[str, Any]
  arrays: dict[str, np.ndarray]


def encode(
  header: Mapping[str, Any], arrays: Mapping[str, np.ndarray] | None = None
) -> bytes:
  """Returns a message as bytes."""
  arrays = {
    name: np.asarray(array, array.dtype.newbyteorder('='), order='C')
    for name, array in (arrays or {}).items()
  }
  listed = [[n, a.dtype.name, a.shape] for n, a in arrays.items()]
  text = atomic_io.to_json({'header': header, 'arrays': listed}, None).encode()
  parts = [_MAGIC, _LENGTH.pack(len(text)), text]
  return b''.join([*parts, *(array.tobytes() for array in arrays.values())])


def decode(data: bytes) -> Message:
  """Returns the message of bytes; raises `DamagedError` for other bytes."""
  start = len(_MAGIC) + _LENGTH.size
  if data[: len(_MAGIC)] != _MAGIC or len(data) < start:
    raise DamagedError('does not start as a message')
  (length,) = _LENGTH.unpack(data[len(_MAGIC) : start])
  position = start + length
  try:
    parsed = json.loads(data[start:position])
    header, listed = dict(parsed['header']), list(parsed['arrays'])
    arrays = {}
    for name, kind, shape in listed:
      dtype = _dtype(str(kind))
      if not all(type(n) is int and n >= 0 for n in shape):
        raise DamagedError(f'array {name} has the shape {shape}')
      count = math.prod(shape)
      end = position + count * dtype.itemsize
      if end > len(data):
        raise DamagedError(f'ends within array {name}')
      flat = np.frombuffer(data, dtype, count, position)
      arrays[str(name)] = flat.reshape(shape)
      position = end
  except (ValueError, TypeError, KeyError, RecursionError) as error:
    raise DamagedError(f'cannot be parsed ({error})') from error
  if position != len(data):
    raise DamagedError('is longer than it says')
  return Message(header, arrays)


def below(
  prefix: str, arrays: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
  """Returns the arrays whose names have a prefix, without it."""
  return {
    name.removeprefix(prefix): array
    for name, array in arrays.items()
    if name.startswith(prefix)
  }


def _dtype(name: str) -> np.dtype:
  """Returns the type of numbers of a name."""
  dtype = np.dtype(object)
  if _TYPE.fullmatch(name):
    try:
      dtype = np.dtype(name)
    except TypeError:
      import ml_dtypes

      dtype = np.dtype(getattr(ml_dtypes, name, None) or object)
  if dtype.kind not in _KINDS or dtype.type is np.void:
    raise DamagedError(f'has an array of {name}')
  return dtype
