"""The federated data set: base arrays held once, and who holds which rows."""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from typing import Any

import numpy as np

from safl_tf.data import arrays
from safl_tf.util import errors, validation

# partition(y, num_classes): y is int [N] with labels in 0..num_classes-1; the
# result holds one int32 array of indices into y per client. A partition that
# knows the clients' names has the attribute `client_ids`.
Partition = Callable[[np.ndarray, int], list[np.ndarray]]

_INFINITE = -1  # tf.data.INFINITE_CARDINALITY


class ClientData:
  """Examples and the clients that hold them; made by the `from_` functions.

  The examples exist once, however many clients share them. Clients cost one
  int32 per example they hold, so 100,000 clients over MNIST are index lists
  only. Client k (0-based) is the one named `client_ids[k]`.

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
    self._ids = [str(name) for name in names]
    self._positions = {name: k for k, name in enumerate(self._ids)}
    _check_ids(self._ids, self._positions, len(parts))
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
    """Spreads one data set over clients.

    Args:
      x: array [N, ...], or a tuple, list or dict of such arrays (a list becomes
        a tuple). Kept without a copy.
      y: class numbers, integers [N] or [N, 1].
      partition: `partition(y, num_classes) -> one index array per client`, as
        `safl_tf.data.partition` makes them, or the index lists themselves.
      client_ids: one name per client; when None, those that the partition
        knows, or '0', '1', ...
      num_classes: largest label + 1 when None.

    Returns:
      A `ClientData`.
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
    """Spreads a part of a TFDS data set for image classification over clients.

    Args:
      name: TFDS's, such as 'cifar100'; images must be of one size.
      partition: as in `from_arrays`.
      data_dir: a folder of prepared TFDS data sets; None means TFDS_DATA_DIR,
        or else ~/tensorflow_datasets. What isn't there is downloaded into it.
      split: TFDS's, such as 'test' or 'train[:10%]'.

    Returns:
      A `ClientData` with uint8 images.
    """
    from safl_tf.data import registry

    x, y, names = registry.load_split(name, split, data_dir)
    return cls.from_arrays(x, y, partition, num_classes=len(names))

  @classmethod
  def from_clients(
    cls, clients: Mapping[Any, Any], num_classes: int | None = None
  ) -> 'ClientData':
    """Joins data sets that are already one per client.

    Args:
      clients: client name -> `(x, y)` arrays as in `from_arrays`, or an
        unbatched `tf.data.Dataset` of `(x, y)` pairs with a scalar y, which is
        read once, here.
      num_classes: largest label + 1 when None.

    Returns:
      A `ClientData` with the clients in the mapping's order.
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
    """One client that holds what any of these does, each example once."""
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
    """m_k, how many examples each client holds: int64 [n], read-only."""
    return self._sizes

  @property
  def total_examples(self) -> int:
    """The sum of m_k; an example held by two clients counts twice."""
    return len(self._flat)

  def indices(self, k: int) -> np.ndarray:
    """The rows of `x` and `y` that client k holds: int32 [m_k], read-only."""
    k = validation.integer('k', k, low=0, high=self.num_clients - 1)
    return self._flat[self._offsets[k] : self._offsets[k + 1]]

  def num_examples(self, client_id: str) -> int:
    """How many examples the client of this name holds."""
    return len(self.indices(self._position(client_id)))

  def create_tf_dataset_for_client(self, client_id: str) -> Any:
    """The client's examples as an unbatched `tf.data.Dataset` of (x, y)."""
    import tensorflow as tf

    rows = self.indices(self._position(client_id))
    x = arrays.map_leaves(lambda leaf: leaf[rows], self.x)
    return tf.data.Dataset.from_tensor_slices((x, self.y[rows]))

  def label_counts(self, clients: Sequence[int] | None = None) -> np.ndarray:
    """How often client k holds label c: int64 [n, num_classes].

    Args:
      clients: the rows to give; all by default.
    """
    ids = range(self.num_clients) if clients is None else clients
    counts = [
      np.bincount(self.y[self.indices(k)], minlength=self.num_classes)
      for k in ids
    ]
    return np.array(counts, np.int64).reshape(-1, self.num_classes)

  def digest(self) -> str:
    """A short checksum of who holds which labels."""
    parts = (self.y, self._flat, self._offsets)
    return hashlib.sha256(b''.join(p.tobytes() for p in parts)).hexdigest()[:16]

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


def _check_ids(
  ids: list[str], positions: dict[str, int], num_clients: int
) -> None:
  """One name per client, each only once."""
  if num_clients == 0:
    raise errors.InputError('partition', 'no clients', 'must hold at least one')
  if len(ids) != num_clients:
    raise errors.InputError(
      'client_ids',
      f'{len(ids)} names',
      f'must be one for each of the {num_clients} clients',
    )
  if len(positions) < len(ids):
    twice = next(name for k, name in enumerate(ids) if positions[name] != k)
    raise errors.InputError('client_ids', twice, 'must be there only once')


def _read(examples: Any) -> tuple[Any, Any]:
  """(x, y) as they were given, or stacked from a `tf.data.Dataset`."""
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
      'data set', 'repeated without end', 'must end; leave out repeat()'
    )
  try:
    pairs = list(examples.as_numpy_iterator())
  except Exception as error:  # whatever a user's functions may do
    raise errors.InputError(
      'data set', 'given', f'cannot be read ({errors.reason(error)})'
    ) from error
  if not pairs:
    raise errors.InputError('data set', 'no examples', 'must yield some')
  xs, ys = zip(*pairs, strict=True)
  stack = lambda *rows: arrays.array('x', rows)
  return arrays.map_leaves(stack, *xs), np.stack(ys)
