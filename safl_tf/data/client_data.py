"""Federated data: the arrays of a data set and the rows of each client."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from typing import Any

import numpy as np

from safl_tf.data import arrays
from safl_tf.util import errors, validation

# partition(y, num_classes) returns one int32 array of row numbers per client,
# for labels y, int [N], in 0..num_classes-1. A partition that names its clients
# has the attribute `client_ids`.
Partition = Callable[[np.ndarray, int], list[np.ndarray]]

_INFINITE = -1  # tf.data.INFINITE_CARDINALITY


class ClientData:
  """Examples and the clients that hold them; see the `from_` constructors.

  Clients share the arrays: each costs one int32 per example it holds, so that
  100,000 clients over MNIST are index lists only. Client k (0-based) is the one
  named `client_ids[k]`.

  Attributes:
    x: inputs [N, ...]: an array, or a tuple or dict of arrays for models with
      several inputs.
    y: labels, int32 [N].
    num_classes: labels are in 0..num_classes-1.
  """

  def __init__(
    self,
    x: Any,
    y: np.ndarray,
    parts: Sequence[Any],
    client_ids: Iterable[Any] | None,
    num_classes: int,
  ):
    self.x = x
    self.y = y
    self.num_classes = num_classes
    names = range(len(parts)) if client_ids is None else client_ids
    takes = 'a list of names or None'
    validation.instance('client_ids', names, Iterable, takes)
    self._ids = [str(name) for name in names]
    self._positions = {name: k for k, name in enumerate(self._ids)}
    self._check_ids(len(parts))
    self._flat, self._offsets = arrays.flatten(parts, self._ids, len(y))
    self._sizes = np.diff(self._offsets)
    self._sizes.setflags(write=False)

  @classmethod
  def from_arrays(
    cls,
    x: Any,
    y: Any,
    partition: Partition | Sequence[Any],
    client_ids: Iterable[Any] | None = None,
    num_classes: int | None = None,
  ) -> 'ClientData':
    """Partitions one data set over clients.

    Args:
      x: array [N, ...], or a tuple, list or dict of such arrays (a list becomes
        a tuple). Not copied.
      y: class numbers, integers [N] or [N, 1].
      partition: a function from `safl_tf.data.partition`, or any
        `partition(y, num_classes) -> one index array per client`, or the index
        lists themselves.
      client_ids: one name per client; None means those of the partition, or
        '0', '1', ...
      num_classes: max(y) + 1 when None.
    """
    x, y = arrays.examples(x, y)
    num_classes = arrays.num_classes(y, num_classes)
    parts = partition(y, num_classes) if callable(partition) else partition
    if not isinstance(parts, Sized):
      raise errors.InputError(
        'partition', parts, 'must be a function or a list of index lists'
      )
    if client_ids is None:
      client_ids = getattr(partition, 'client_ids', None)
    return cls(x, y, parts, client_ids, num_classes)

  @classmethod
  def from_tfds(
    cls,
    name: str,
    partition: Partition | Sequence[Any],
    data_dir: str | None = None,
    split: str = 'train',
  ) -> 'ClientData':
    """Partitions a split of a TFDS data set for image classification.

    Args:
      name: the name in TFDS, such as 'cifar100'; images must be of one size.
      partition: as in `from_arrays`.
      data_dir: a folder of prepared TFDS data sets; None means TFDS_DATA_DIR,
        or else ~/tensorflow_datasets. Missing data sets are downloaded into it.
      split: a split in the notation of TFDS, such as 'train[:10%]'.
    """
    from safl_tf.data import tfds

    for argument, value in ('name', name), ('split', split):
      validation.instance(argument, value, str, 'text')
    takes = 'the path of a folder or None'
    kinds = (str, os.PathLike)
    validation.instance('data_dir', data_dir, kinds, takes, optional=True)
    x, y, class_names = tfds.load_split(name, split, data_dir)
    return cls.from_arrays(x, y, partition, num_classes=len(class_names))

  @classmethod
  def from_clients(
    cls, clients: Mapping[Any, Any], num_classes: int | None = None
  ) -> 'ClientData':
    """Joins one data set per client, in the order of the mapping.

    Args:
      clients: client name -> `(x, y)` arrays as in `from_arrays`, or an
        unbatched `tf.data.Dataset` of `(x, y)` pairs with a scalar y, which is
        read once, here.
      num_classes: largest label + 1 when None.
    """
    if not isinstance(clients, Mapping):
      raise errors.InputError(
        'clients', type(clients).__name__, "must map clients' names to data"
      )
    xs: list[Any] = []
    ys: list[np.ndarray] = []
    for name, examples in clients.items():
      try:
        x, y = arrays.examples(*_read(examples))
        arrays.check_alike(x, xs[0] if xs else x)
        arrays.num_classes(y, num_classes)
      except errors.InputError as error:
        place = f'clients[{name!r}]: {error.argument}'
        raise errors.InputError(place, error.value, error.hint) from None
      xs.append(x)
      ys.append(y)
    if not ys:
      raise errors.InputError('clients', 'none', 'must hold a client')
    x = arrays.map_leaves(lambda *leaves: np.concatenate(leaves), *xs)
    y = np.concatenate(ys)
    ends = np.cumsum([len(y_k) for y_k in ys])
    parts = np.split(np.arange(len(y), dtype=np.int32), ends[:-1])
    return cls(x, y, parts, clients, arrays.num_classes(y, num_classes))

  def pooled(self) -> 'ClientData':
    """Returns one client that holds the examples of all, each once."""
    return ClientData(
      self.x, self.y, [np.unique(self._flat)], ['all'], self.num_classes
    )

  @property
  def client_ids(self) -> list[str]:
    """The clients' names."""
    return list(self._ids)

  @property
  def num_clients(self) -> int:
    """n, the number of clients."""
    return len(self._ids)

  @property
  def sizes(self) -> np.ndarray:
    """m_k, the number of examples of each client: int64 [n], read-only."""
    return self._sizes

  @property
  def total_examples(self) -> int:
    """The sum of m_k; an example held by two clients counts twice."""
    return len(self._flat)

  @property
  def rows(self) -> np.ndarray:
    """The rows of all clients, one client after the other; read-only."""
    return self._flat

  def indices(self, k: int) -> np.ndarray:
    """Returns the rows of client k: int32 [m_k], read-only."""
    k = validation.integer('k', k, low=0, high=self.num_clients - 1)
    return self._flat[self._offsets[k] : self._offsets[k + 1]]

  def num_examples(self, client_id: str) -> int:
    """Returns the number of examples of the client with this name."""
    return len(self.indices(self._position(client_id)))

  def create_tf_dataset_for_client(self, client_id: str) -> Any:
    """Returns an unbatched `tf.data.Dataset` of a client's (x, y) pairs."""
    import tensorflow as tf

    rows = self.indices(self._position(client_id))
    x = arrays.map_leaves(lambda leaf: leaf[rows], self.x)
    return tf.data.Dataset.from_tensor_slices((x, self.y[rows]))

  def label_counts(self, clients: Sequence[int] | None = None) -> np.ndarray:
    """Counts the examples of each label: int64 [clients, num_classes]."""
    ids = range(self.num_clients) if clients is None else clients
    validation.instance('clients', ids, Iterable, 'a list of clients or None')
    counts = [
      np.bincount(self.y[self.indices(k)], minlength=self.num_classes)
      for k in ids
    ]
    return np.array(counts, np.int64).reshape(-1, self.num_classes)

  def _check_ids(self, num_clients: int) -> None:
    """Refuses missing or repeated names."""
    if num_clients == 0:
      raise errors.InputError(
        'partition', 'no clients', 'must hold at least one'
      )
    if len(self._ids) != num_clients:
      raise errors.InputError(
        'client_ids',
        f'{len(self._ids)} names',
        f'must be one for each of the {num_clients} clients',
      )
    for k, name in enumerate(self._ids):
      if self._positions[name] != k:
        raise errors.InputError('client_ids', name, 'must be there only once')
      if not arrays.is_unicode(name):
        raise errors.InputError('client_ids', ascii(name), 'must be Unicode')

  def _position(self, client_id: str) -> int:
    k = self._positions.get(client_id)
    if k is None:
      few = ', '.join(self._ids[:3])
      raise errors.InputError(
        'client_id', repr(client_id), f'must be one of client_ids: {few}, ...'
      )
    return k

  def __len__(self) -> int:
    return self.num_clients

  def __repr__(self) -> str:
    return (
      f'ClientData({self.num_clients} clients, {self.total_examples} examples '
      f'of {len(self.y)}, {self.num_classes} classes)'
    )


def _read(examples: Any) -> tuple[Any, Any]:
  """Returns (x, y), stacked from a `tf.data.Dataset` if it is one."""
  if not hasattr(examples, 'as_numpy_iterator'):
    if not isinstance(examples, tuple | list) or len(examples) != 2:
      raise errors.InputError(
        'value', type(examples).__name__, 'must be (x, y) or a tf.data.Dataset'
      )
    return examples[0], examples[1]
  spec = examples.element_spec
  if not isinstance(spec, tuple) or len(spec) != 2:
    raise errors.InputError('data set', spec, 'must yield (x, y) pairs')
  shape = getattr(spec[1], 'shape', None)
  if shape is None or tuple(shape) not in ((), (1,)):
    raise errors.InputError(
      'data set',
      f'y of shape {shape}',
      'must yield single examples with class numbers; unbatch() it first',
    )
  if int(examples.cardinality()) == _INFINITE:
    raise errors.InputError(
      'data set', 'infinite', 'must be finite; leave out repeat()'
    )
  try:
    pairs = list(examples.as_numpy_iterator())
  except Exception as error:  # a user function may raise anything
    raise errors.InputError(
      'data set', 'given', f'cannot be read ({errors.reason(error)})'
    ) from error
  if not pairs:
    raise errors.InputError('data set', 'no examples', 'must yield some')
  xs, ys = zip(*pairs, strict=True)
  stack = lambda *rows: arrays.array('x', rows)
  return arrays.map_leaves(stack, *xs), np.stack(ys)
