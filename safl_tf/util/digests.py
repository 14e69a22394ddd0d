"""Digests of arrays and text, at the speed of memory.

An array is cut into blocks of rows that threads hash with SHA-256, for which
processors have instructions; the digest is that of the blocks' digests and of
the array's type and shape. `python -m benchmarks.parts` measures it.
"""

import hashlib
import math
from collections.abc import Iterable
from concurrent import futures
from typing import Any

import numpy as np

from safl_tf.util import hardware

_BLOCK_BYTES = 16 << 20
_LENGTH = 32  # hexadecimal digits: 128 bits


def of_text(text: str) -> str:
  """Returns the digest of a text."""
  return hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[
    :_LENGTH
  ]


def of_array(array: Any) -> str:
  """Returns the digest of all elements of an array, its type and its shape."""
  array = np.asarray(array)
  rows = array.reshape(-1) if array.ndim == 0 else array
  row_bytes = array.itemsize * math.prod(rows.shape[1:])
  step = max(1, _BLOCK_BYTES // max(1, row_bytes))

  def block(start: int) -> bytes:
    part = np.ascontiguousarray(rows[start : start + step])
    return hashlib.sha256(part.view(np.uint8).data).digest()

  starts = range(0, len(rows), step) if array.size else range(0)
  header = f'{array.dtype.str} {array.shape}'.encode()
  if len(starts) <= 1:
    return _join(header, map(block, starts))
  with futures.ThreadPoolExecutor(hardware.num_cores()) as pool:
    return _join(header, pool.map(block, starts))


def _join(header: bytes, parts: Iterable[bytes]) -> str:
  total = hashlib.sha256(header)
  for part in parts:
    total.update(part)
  return total.hexdigest()[:_LENGTH]
