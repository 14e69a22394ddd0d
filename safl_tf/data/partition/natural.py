"""The natural partition: by who the examples come from."""

import dataclasses
from typing import Any

import numpy as np

from safl_tf.data import arrays
from safl_tf.util import errors, validation


@dataclasses.dataclass(frozen=True, eq=False)
class ByClient:
  """A partition that is known before the labels are.

  Attributes:
    client_ids: the clients' names.
    parts: the examples of each, int32.
    total: N, how many examples there must be.
  """

  client_ids: list[str] = dataclasses.field(repr=False)
  parts: list[np.ndarray] = dataclasses.field(repr=False)
  total: int

  def __call__(self, y: np.ndarray, num_classes: int) -> list[np.ndarray]:
    """The parts, if there are as many labels as examples with a client."""
    del num_classes
    if len(y) != self.total:
      raise errors.InputError(
        'client',
        f'array of length {self.total}',
        f'must have one entry for each of the {len(y)} labels in y',
      )
    return self.parts


def by_client(client: Any, min_examples: int = 1) -> ByClient:
  """A client for each client, with its examples in the order they are in.

  The clients are sorted by the client's name, or number, and carry it as their
  name in `ClientData`.

  Args:
    client: who each example comes from [N]: all names or all whole numbers.
    min_examples: clients with fewer examples are left out.

  Returns:
    A `Partition`.
  """
  least = validation.integer('min_examples', min_examples, low=1)
  clients = _clients(client)
  found, inverse, counts = np.unique(
    clients, return_inverse=True, return_counts=True
  )
  if counts.max() < least:
    raise errors.InputError(
      'min_examples',
      least,
      f'no client has so many examples; must be at most {counts.max()}',
    )
  order = np.argsort(inverse, kind='stable').astype(np.int32)
  parts = np.split(order, np.cumsum(counts)[:-1])
  kept = np.flatnonzero(counts >= least)
  return ByClient(
    [str(found[i]) for i in kept], [parts[i] for i in kept], len(clients)
  )


def _clients(client: Any) -> np.ndarray:
  """An array of text or of whole numbers [N]."""
  clients = arrays.array('client', client)
  if clients.ndim != 1 or not len(clients):
    raise errors.InputError(
      'client',
      f'array of shape {list(clients.shape)}',
      'must hold one name for each example',
    )
  if clients.dtype.kind == 'O':
    names = clients.tolist()
    kinds = {type(name) for name in names}
    if kinds not in ({str}, {bytes}, {int}):
      told = ', '.join(sorted(kind.__name__ for kind in kinds))
      raise errors.InputError(
        'client', f'array of {told}', 'must hold names or whole numbers'
      )
    clients = np.array(names)
  if clients.dtype.kind == 'S':
    clients = np.char.decode(clients, 'utf-8', 'backslashreplace')
  if clients.dtype.kind not in 'iuU':
    raise errors.InputError(
      'client', f'array of {clients.dtype}', 'must hold names or whole numbers'
    )
  return clients
