"""Event files for TensorBoard's HParams page, without the tensorboard package.

An experiment names the parameters and the metric that are the columns of the
page; a session has the parameters of one run, whose metrics are in the same
folder. Messages are written field by field, as protocol buffers are encoded:
the numbers are those of tensorboard/plugins/hparams/{api,plugin_data}.proto and
of tensorflow/core/util/event.proto.
"""

import functools
import os
import pathlib
import struct
from collections.abc import Iterable, Mapping
from typing import Any

from safl_tf.reporting import metrics
from safl_tf.util import atomic_io

FILE = 'events.out.tfevents.0.hparams'
_STRING, _BOOL, _NUMBER = 1, 2, 3  # DataType
_SUCCESS = 1  # Status
_EMPTY_TENSOR = ((1, 1), (2, ((2, ()),)))  # of type float and shape [0]

Fields = Iterable[tuple[int, Any]]


def write_experiment(
  folder: str | os.PathLike[str],
  settings: Iterable[Mapping[str, Any]],
  metric: metrics.Metric,
) -> None:
  """Writes the columns of the page: the parameters of settings and a metric."""
  kinds: dict[str, set[int]] = {}
  for setting in settings:
    for name, value in setting.items():
      kinds.setdefault(name, set()).update(_kinds(value))
  infos = [
    (4, ((1, name), (4, kind.pop() if len(kind) == 1 else _STRING)))
    for name, kind in kinds.items()
  ]
  tag = metric.column.replace('_', '/', 1)  # of metrics_log
  shown = (5, ((1, ((2, tag),)), (3, metric.title)))
  _write(folder, {'experiment': (2, (*infos, shown))})


def write_session(
  folder: str | os.PathLike[str], setting: Mapping[str, Any]
) -> None:
  """Writes the parameters of a finished run to the folder of its events."""
  values = [
    (1, ((1, name), (2, _value(value))))
    for name, value in setting.items()
    if value is not None
  ]
  events = {
    'session_start_info': (3, values),
    'session_end_info': (4, ((1, _SUCCESS),)),
  }
  _write(folder, events)


def _kinds(value: Any) -> set[int]:
  """Returns the type of a value; none if it is not used."""
  if value is None:
    return set()
  if isinstance(value, bool):
    return {_BOOL}
  return {_NUMBER if isinstance(value, int | float) else _STRING}


def _value(value: Any) -> Fields:
  """Returns a google.protobuf.Value."""
  if isinstance(value, bool):
    return ((4, value),)
  if isinstance(value, int | float):
    return ((2, float(value)),)
  return ((3, str(value)),)


def _write(
  folder: str | os.PathLike[str], contents: Mapping[str, tuple[int, Fields]]
) -> None:
  """Writes an event per content, by its tag, unless the file has them."""
  records = [_encode(((3, 'brain.Event:2'),))]
  for tag, content in contents.items():
    plugin = ((1, 'hparams'), (2, _encode((content,))))
    metadata = ((1, plugin),)
    value = ((1, f'_hparams_/{tag}'), (8, _EMPTY_TENSOR), (9, metadata))
    records.append(_encode(((5, ((1, value),)),)))
  data = b''.join(map(_frame, records))
  path = pathlib.Path(folder, FILE)
  if not path.is_file() or path.read_bytes() != data:
    atomic_io.write_bytes(path, data)


def _encode(fields: Fields) -> bytes:
  """Encodes (number, value); a value is a number, text, bytes or fields."""
  encoded = b''
  for number, value in fields:
    if isinstance(value, float):
      encoded += _varint(number << 3 | 1) + struct.pack('<d', value)
    elif isinstance(value, int):
      encoded += _varint(number << 3) + _varint(value)
    else:
      if isinstance(value, str):
        value = value.encode()
      elif not isinstance(value, bytes):
        value = _encode(value)
      encoded += _varint(number << 3 | 2) + _varint(len(value)) + value
  return encoded


def _varint(number: int) -> bytes:
  encoded = b''
  while number > 127:
    encoded += bytes([number & 127 | 128])
    number >>= 7
  return encoded + bytes([number])


def _frame(record: bytes) -> bytes:
  """Returns a TFRecord."""
  length = struct.pack('<Q', len(record))
  return b''.join([length, _checksum(length), record, _checksum(record)])


def _checksum(data: bytes) -> bytes:
  """Returns the masked CRC-32C of TFRecords."""
  crc, table = 0xFFFFFFFF, _crc_table()
  for byte in data:
    crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
  crc ^= 0xFFFFFFFF
  rotated = (crc >> 15 | crc << 17) & 0xFFFFFFFF
  return struct.pack('<I', (rotated + 0xA282EAD8) & 0xFFFFFFFF)


@functools.cache
def _crc_table() -> list[int]:
  table = []
  for value in range(256):
    for _ in range(8):
      value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    table.append(value)
  return table
