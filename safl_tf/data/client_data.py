"""Federated data: the arrays of a data set and the rows of each client."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from typing import Any

import numpy as np

from safl_tf.data import arrays
from safl_tf.util import errors, validation

# partition(y, num_classes) returns one int32 array of row numbers per client,
# for class numbers y, int [N], in 0..num_classes-1, or for other targets y with
# num_classes=None. A partition that names its clients has the attribute
# `client_ids`.
Partition = Callable[[np.ndarray, int | None], list[np.ndarray]]


class ClientData:
  """Examples and the clients that hold them; see the `from_` constructors.

  Clients share the arrays: each costs one int32 per example it holds, so that
  100,000 clients over MNIST are index lists only. Client k (0-based) is the one
  named `client_ids[k]`.

  Attributes:
    x: inputs [N, ...]: an array, or a tuple or dict of arrays for models with
      several inputs. Text is held as UTF-8 in bytes of one length.
    y: targets: class numbers, int32 [N]; float32 [N] or [N, ...]; or int32
      [N, ...] for several labels or tokens per example.
    num_classes: class numbers are in 0..num_classes-1; None for other targets.
    sample_weight: weights of the examples, float32 [N], or of their tokens
      [N, T]; None means equal weights.
    class_names: the names of the classes, if known; otherwise None.
    has_examples: whether these are the clients' examples, not rows of zeros in
      the place of data that real clients keep to themselves.

  Example:
    ```pycon
    >>> data = safl_tf.ClientData.from_clients({
    ...   'anna': (x[:40], y[:40]), 'ben': (x[40:100], y[40:100])})
    >>> data
    ClientData(2 clients, 100 examples of 100, 3 classes)
    >>> data.client_ids, data.sizes.tolist()
    (['anna', 'ben'], [40, 60])
    >>> data.label_counts().sum(axis=1).tolist()
    [40, 60]
    ```
  """

  has_examples = True

  def __init__(
    self,
    x: Any,
    y: np.ndarray,
    parts: Sequence[Any] | np.ndarray,
    client_ids: Iterable[Any] | None,
    num_classes: int | None,
    sample_weight: np.ndarray | None = None,
    class_names: list[str] | None = None,
  ):
    self.x = x
    self.y = y
    self.num_classes = num_classes
    self.sample_weight = sample_weight
    self.class_names = class_names
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
    partition: Partition | Sequence[Any] | np.ndarray,
    client_ids: Iterable[Any] | None = None,
    num_classes: int | None = None,
    sample_weight: Any = None,
    class_names: Iterable[Any] | None = None,
  ) -> 'ClientData':
    """Partitions one data set over clients.

    Args:
      x: array [N, ...] of numbers or text, or a tuple, list or dict of such
        arrays (a list becomes a tuple). Numbers are not copied. A pandas
        DataFrame of numbers becomes an array [N, columns], any other a dict of
        its columns.
      y: the targets [N, ...]. Whole numbers [N] or [N, 1] are class numbers 0,
        1, ...; text or a pandas categorical [N] are classes, numbered in sorted
        order or in that of the categories, see `class_numbers`; floats are
        numbers to predict, even if whole; whole numbers or booleans [N, ...]
        are several labels, or tokens. A pandas Series is an array, and a
        DataFrame one of [N, columns].
      partition: a function of `partition`, or any `partition(y, num_classes) ->
        one index array per client`, or the index lists themselves.
      client_ids: one name per client; None means those of the partition, or
        '0', '1', ...
      num_classes: max(y) + 1 when None, or the number of class names.
      sample_weight: the weight of each example [N], or of each token [N, T];
        numbers that are not negative.
      class_names: the names of classes 0, 1, ...

    Raises:
      InputError: names the argument, and where possible the row, that is
        invalid.

    Example:
      ```pycon
      >>> safl_tf.ClientData.from_arrays(
      ...   x, y, safl_tf.partition.by_labels(num_clients=10, max_labels=2))
      ClientData(10 clients, 296 examples of 300, 3 classes)
      >>> safl_tf.ClientData.from_arrays(x, y, [range(0, 200), range(200, 300)])
      ClientData(2 clients, 300 examples of 300, 3 classes)
      ```
    """
    from safl_tf.data import examples, targets

    found = examples.check(x, y, sample_weight, class_names)
    names = found.class_names
    num_classes = targets.num_classes(found.y, num_classes, names)
    parts = (
      partition(found.y, num_classes) if callable(partition) else partition
    )
    if not isinstance(parts, Sized):
      raise errors.InputError(
        'partition', parts, 'must be a function or a list of index lists'
      )
    if client_ids is None:
      client_ids = getattr(partition, 'client_ids', None)
    weights = found.sample_weight
    return cls(found.x, found.y, parts, client_ids, num_classes, weights, names)

  @classmethod
  def from_tfds(
    cls,
    name: str,
    partition: Partition | Sequence[Any] | np.ndarray,
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
    return cls.from_arrays(x, y, partition, class_names=class_names)

  @classmethod
  def from_clients(
    cls,
    clients: Mapping[Any, Any],
    num_classes: int | None = None,
    class_names: Iterable[Any] | None = None,
  ) -> 'ClientData':
    """Joins one data set per client, in the order of the mapping.

    Args:
      clients: client name -> `(x, y)` or `(x, y, sample_weight)` as in
        `from_arrays`, or a finite `tf.data.Dataset` of such, which is read
        once, here. It may be batched if the length of a batch is unknown to it,
        as without `drop_remainder`.
      num_classes: as in `from_arrays`.
      class_names: as in `from_arrays`.

    Raises:
      InputError: names the client whose data are invalid.

    Example:
      ```pycon
      >>> safl_tf.ClientData.from_clients({
      ...   'anna': (x[:40], y[:40]), 'ben': (x[40:100], y[40:100])})
      ClientData(2 clients, 100 examples of 100, 3 classes)
      ```
    """
    from safl_tf.data import examples, targets

    if not isinstance(clients, Mapping):
      raise errors.InputError(
        'clients', type(clients).__name__, "must map clients' names to data"
      )
    if class_names is not None:
      class_names = targets.check_names(class_names)
    parts: list[examples.Examples] = []
    for name, value in clients.items():
      try:
        part = examples.read(value, class_names)
        if parts:
          examples.check_like_first(part, parts[0])
        targets.num_classes(part.y, num_classes, part.class_names)
      except errors.InputError as error:
        place = f'clients[{name!r}]'
        raise examples.within(place, error) from None
      parts.append(part)
    if not parts:
      raise errors.InputError('clients', 'none', 'must hold a client')
    x, y, weights, names = examples.join(parts)
    ends = np.cumsum([len(part.y) for part in parts])
    rows = np.split(np.arange(len(y), dtype=np.int32), ends[:-1])
    num_classes = targets.num_classes(y, num_classes, names)
    return cls(x, y, rows, clients, num_classes, weights, names)

  def replace(self, **changes: Any) -> 'ClientData':
    """Returns a copy with other values for arguments of the constructor.

    Example:
      ```pycon
      >>> clients.replace(client_ids=['n', 'e', 's', 'w']).client_ids
      ['n', 'e', 's', 'w']
      ```
    """
    values: dict[str, Any] = {
      'x': self.x,
      'y': self.y,
      'parts': np.split(self._flat, self._offsets[1:-1]),
      'client_ids': self._ids,
      'num_classes': self.num_classes,
      'sample_weight': self.sample_weight,
      'class_names': self.class_names,
    }
    return ClientData(**{**values, **changes})

  def split(
    self, test_fraction: float = 0.2, seed: int = 0
  ) -> tuple['ClientData', 'ClientData']:
    """Splits the examples of each client into two parts.

    An example that several clients hold is in the same part for all of them, so
    that nobody trains on what another client is tested on.

    Args:
      test_fraction: the share of a client's examples to test on; at least one
        example of two or more.
      seed: of the split.

    Returns:
      What clients train on, and what they are tested on. The latter is without
      clients that have a single example.

    Example:
      ```pycon
      >>> train_clients, test_clients = clients.split(test_fraction=0.25)
      >>> train_clients.num_clients, test_clients.num_clients
      (4, 4)
      ```
    """
    from safl_tf.core import seeds

    validation.limited('test_fraction', test_fraction, 'client_test_fraction')
    validation.limited('seed', seed)
    in_test = np.full(len(self.y), -1, np.int8)  # -1 is undecided
    for k in np.argsort(self.sizes, kind='stable').tolist():
      rng = seeds.generator(seed, seeds.Role.SPLIT, k)
      rows = rng.permutation(np.unique(self.indices(k)))
      m = len(rows)
      wanted = min(m - 1, max(1, round(test_fraction * m)))
      undecided = rows[in_test[rows] < 0]
      missing = max(0, wanted - int((in_test[rows] == 1).sum()))
      in_test[undecided[:missing]] = 1
      in_test[undecided[missing:]] = 0
    parts: list[list[np.ndarray]] = [[], []]
    for k in range(self.num_clients):
      rows = self.indices(k)
      for is_test, part in enumerate(parts):
        part.append(rows[in_test[rows] == is_test])
    train, test = parts
    for name, rows in zip(self._ids, train, strict=True):
      if not len(rows):
        hint = f'leaves client {name} nothing to train on'
        raise errors.InputError('test_fraction', test_fraction, hint)
    tested = [k for k, rows in enumerate(test) if len(rows)]
    if not tested:
      hint = 'leaves nothing to test on: all clients have one example'
      raise errors.InputError('test_fraction', test_fraction, hint)
    return self.replace(parts=train), self.replace(
      parts=[test[k] for k in tested],
      client_ids=[self._ids[k] for k in tested],
    )

  def pooled(self) -> 'ClientData':
    """Returns one client that holds the examples of all, each once."""
    return self.replace(parts=[np.unique(self._flat)], client_ids=['all'])

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
    """Returns an unbatched `tf.data.Dataset` of a client's (x, y) pairs.

    With sample weights, it is one of (x, y, sample_weight).
    """
    import tensorflow as tf

    rows = self.indices(self._position(client_id))
    x = arrays.map_leaves(lambda leaf: leaf[rows], self.x)
    w = () if self.sample_weight is None else (self.sample_weight[rows],)
    return tf.data.Dataset.from_tensor_slices((x, self.y[rows], *w))

  def label_counts(self, clients: Sequence[int] | None = None) -> np.ndarray:
    """Counts the examples of each label: int64 [clients, num_classes].

    Refuses targets that are not class numbers.

    Args:
      clients: the numbers of the clients to count for; all by default.

    Example:
      ```pycon
      >>> data = safl_tf.ClientData.from_arrays(
      ...   x, [0, 0, 1, 2] * 75, [range(4), range(4, 12)])
      >>> data.label_counts().tolist()
      [[2, 1, 1], [4, 2, 2]]
      ```
    """
    from safl_tf.data import targets

    targets.refuse_without_classes('label_counts', 'called', self.y)
    C = self.num_classes or 0
    ids = range(self.num_clients) if clients is None else clients
    validation.instance('clients', ids, Iterable, 'a list of clients or None')
    counts = [np.bincount(self.y[self.indices(k)], minlength=C) for k in ids]
    return np.array(counts, np.int64).reshape(-1, C)

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
    from safl_tf.data import targets

    C = self.num_classes
    kind = targets.describe(self.y) if C is None else f'{C} classes'
    return (
      f'ClientData({self.num_clients} clients, {self.total_examples} examples '
      f'of {len(self.y)}, {kind})'
    )
