"""Flower's messages around ours."""

import numpy as np
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.common.serde import message_to_proto

MESSAGE_TYPE = 'query'
_NAME = 'safl_tf'


def wrap(data: bytes) -> RecordDict:
  """Returns the content of a message of Flower."""
  array = Array(np.frombuffer(data, np.uint8))
  return RecordDict({_NAME: ArrayRecord({_NAME: array})})


def unwrap(message: Message) -> bytes:
  """Returns what `wrap` was given."""
  return message.content.array_records[_NAME][_NAME].numpy().tobytes()


def size(message: Message) -> int:
  """Returns the bytes of a message as Flower sends it."""
  return message_to_proto(message).ByteSize()
