"""The natural partition: one client for each client id in the data."""

from typing import Any

import numpy as np

from safl_tf.data import arrays
from safl_tf.data.partition import base
from safl_tf.util import errors, validation


def by_client(client: Any, min_examples: int = 1) -> base.Partition:
  """Gives each client the examples with its id, in their order.

  Clients are sorted by id, and `ClientData` uses the ids as their names.

  Args:
    client: the client id of each example [N]: names or whole numbers.
    min_examples: clients with fewer examples are left out.

  Example:
    ```pycon
    >>> owner = ['anna', 'ben', 'ben'] * 100
    >>> data = safl_tf.ClientData.from_arrays(
    ...   x, y, safl_tf.partition.by_client(owner))
    >>> data.client_ids, data.sizes.tolist()
    (['anna', 'ben'], [100, 200])
    ```
  """
  low = validation.limited('min_examples', min_examples)
  client_ids = _check_ids(client)
  names, inverse, counts = np.unique(
    client_ids, return_inverse=True, return_counts=True
  )
  if counts.max() < low:
    raise errors.InputError(
      'min_examples',
      low,
      f'no client has so many examples; must be at most {counts.max()}',
    )
  order = np.argsort(inverse, kind='stable').astype(np.int32)
  parts = np.split(order, np.cumsum(counts)[:-1])
  kept = np.flatnonzero(counts >= low)

  def partition(y: np.ndarray, num_classes: int | None) -> list[np.ndarray]:
    del num_classes
    if len(y) != len(client_ids):
      raise errors.InputError(
        'client',
        f'array of length {len(client_ids)}',
        f'must have one entry for each of the {len(y)} labels in y',
      )
    return [parts[k] for k in kept]

  partition.client_ids = [str(names[k]) for k in kept]  # type: ignore[attr-defined]
  return partition


def _check_ids(client: Any) -> np.ndarray:
  """Returns an array of text or whole numbers [N]."""
  ids = arrays.array('client', client)
  if ids.ndim != 1 or not len(ids):
    raise errors.InputError(
      'client',
      f'array of shape {list(ids.shape)}',
      'must hold one client id for each example',
    )
  if isinstance(client, list | tuple) or ids.dtype.kind == 'O':
    ids = _from_list(list(client))
  if ids.dtype.kind == 'S':
    try:
      ids = np.char.decode(ids, 'utf-8')
    except UnicodeDecodeError as error:
      raise errors.InputError('client', 'bytes', 'must be UTF-8') from error
  if ids.dtype.kind not in 'iuU':
    raise errors.InputError(
      'client', f'array of {ids.dtype}', 'must hold names or whole numbers'
    )
  return ids


def _from_list(values: list[Any]) -> np.ndarray:
  """Returns an array of the same values, of which NumPy makes none equal."""
  types = {type(value) for value in values}
  for kind in (str, bytes, int | np.integer):
    if bool not in types and all(issubclass(t, kind) for t in types):
      ids = np.array(values)
      if ids.tolist() == values and ids.dtype.kind in 'iuUS':
        return ids
  content = ', '.join(sorted(kind.__name__ for kind in types))
  raise errors.InputError(
    'client',
    f'array of {content}',
    'must hold names, or whole numbers of 64 bits',
  )
