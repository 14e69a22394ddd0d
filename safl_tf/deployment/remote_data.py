"""The clients of a run without their data, as the server knows them."""

from typing import Any

import numpy as np

from safl_tf.data import arrays, client_data
from safl_tf.deployment import record as record_lib


class RemoteClientData(client_data.ClientData):
  """Sizes of clients and types of examples; every example is a row of zeros."""

  has_examples = False


def create(record: record_lib.Record) -> RemoteClientData:
  """Returns the clients of a run."""
  facts = record.facts
  x = arrays.map_leaves(lambda a: a[:1], _zeros(facts.inputs))
  y = np.zeros([1, *facts.targets['shape']], facts.targets['dtype'])
  weights = None
  if facts.weights is not None:
    weights = np.ones([1, *facts.weights], np.float32)
  return RemoteClientData(
    x,
    y,
    [np.zeros(client.size, np.int32) for client in record.clients],
    [client.name for client in record.clients],
    facts.num_classes,
    weights,
    list(facts.class_names) or None,
  )


def _zeros(spec: Any) -> Any:
  """Returns two zero inputs; a list of arrays is a tuple."""
  zeros = arrays.zeros_like_spec(spec)
  return tuple(zeros) if isinstance(zeros, list) else zeros
