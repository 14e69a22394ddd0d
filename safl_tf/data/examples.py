"""Reads examples from arrays, or from a `tf.data.Dataset`, and checks them."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from safl_tf.data import arrays, targets
from safl_tf.util import errors

if TYPE_CHECKING:
  from safl_tf.data import client_data

_INFINITE = -1  # tf.data.INFINITE_CARDINALITY


class Examples(NamedTuple):
  """Checked examples; `ClientData` has attributes of the same names."""

  x: Any
  y: np.ndarray
  sample_weight: np.ndarray | None = None
  class_names: list[str] | None = None


def check(
  x: Any,
  y: Any,
  sample_weight: Any = None,
  class_names: Iterable[Any] | None = None,
) -> Examples:
  """Checks examples, as `ClientData.from_arrays` takes them."""
  y, names = targets.read(y, class_names)
  x = arrays.inputs(x, len(y))
  if sample_weight is not None:
    sample_weight = targets.weights(sample_weight, y)
  return Examples(x, y, sample_weight, names)


def read(value: Any, class_names: Iterable[Any] | None = None) -> Examples:
  """Checks (x, y), (x, y, sample_weight) or a `tf.data.Dataset` of such."""
  if hasattr(value, 'as_numpy_iterator'):
    value = _from_dataset(value)
  if not isinstance(value, tuple | list) or len(value) not in (2, 3):
    raise errors.InputError(
      'value',
      type(value).__name__,
      'must be (x, y), (x, y, sample_weight) or a tf.data.Dataset of such',
    )
  x, y, w = (*value, None)[:3]
  return check(x, y, w, class_names)


def read_test(value: Any, clients: 'client_data.ClientData') -> Examples:
  """Checks examples to test on, whose targets must be like the clients'.

  Args:
    value: as in `read`. Names of classes are numbered as those of the clients.
    clients: the training data.
  """
  try:
    found = read(value)
    names, y = clients.class_names, found.y
    if found.class_names is not None:
      if names is None or clients.num_classes is None:
        kind = targets.describe(clients.y)
        hint = f"must be like the clients' targets: {kind}"
        raise errors.InputError('y', 'names of classes', hint)
      y, _ = targets.class_numbers(
        [found.class_names[c] for c in y.tolist()], names
      )
    check_alike(y, clients.y, "the clients'")
    targets.num_classes(y, clients.num_classes)
  except errors.InputError as error:
    raise within('test_data', error) from None
  return found._replace(y=y, class_names=names)


def join(parts: list[Examples]) -> Examples:
  """Concatenates the examples of clients; numbers named classes together."""
  x = arrays.map_leaves(
    lambda *leaves: np.concatenate(leaves), *(part.x for part in parts)
  )
  names = parts[0].class_names
  ys = [part.y for part in parts]
  lists = [part.class_names or [] for part in parts]
  if any(other != names for other in lists) and names is not None:
    names = sorted(set().union(*lists))
    ys = [
      targets.class_numbers([own[c] for c in y.tolist()], names)[0]
      for y, own in zip(ys, lists, strict=True)
    ]
  weights = [w for w in (p.sample_weight for p in parts) if w is not None]
  w = np.concatenate(weights) if weights else None
  return Examples(x, np.concatenate(ys), w, names)


def check_like_first(part: Examples, first: Examples) -> None:
  """Refuses the examples of a client that differ in kind from the first's."""
  arrays.check_alike(part.x, first.x)
  check_alike(part.y, first.y, "the first client's")
  for name, here, there in (
    ('y', part.class_names, first.class_names),
    ('sample_weight', part.sample_weight, first.sample_weight),
  ):
    if (here is None) != (there is None):
      what = 'names' if name == 'y' else 'weights'
      kinds = [f'with {what}', f'without {what}']
      value, other = kinds if there is None else kinds[::-1]
      hint = f"must be like the first client's, {other}"
      raise errors.InputError(name, value, hint)


def check_alike(y: np.ndarray, first: np.ndarray, whose: str) -> None:
  """Refuses targets that differ from `first` in type or shape."""
  here, there = map(arrays.describe_rows, (y, first))
  if here != there:
    hint = f'must be like {whose}: {there}'
    raise errors.InputError('y', f'rows of {here}', hint)


def within(place: str, error: errors.InputError) -> errors.InputError:
  """Returns the error with the place of the argument before its name."""
  argument = f'{place}: {error.argument}'
  return errors.InputError(argument, error.value, error.hint)


def _from_dataset(dataset: Any) -> tuple[Any, ...]:
  """Reads a `tf.data.Dataset`; a first axis of unknown length is the batch."""
  import tensorflow as tf

  spec = dataset.element_spec
  if not isinstance(spec, tuple) or len(spec) not in (2, 3):
    hint = 'must yield (x, y) pairs, or (x, y, sample_weight)'
    raise errors.InputError('data set', errors.one_line(str(spec)), hint)
  shapes = [getattr(part, 'shape', None) for part in tf.nest.flatten(spec)]
  if not all(isinstance(part, tf.TensorSpec) for part in spec[1:]):
    hint = 'must yield one dense array'
    raise errors.InputError('data set', f'y of {spec[1]}', hint)
  if int(dataset.cardinality()) == _INFINITE:
    raise errors.InputError(
      'data set', 'infinite', 'must be finite; leave out repeat()'
    )
  batched = all(
    shape is not None and shape.rank and shape[0] is None for shape in shapes
  )
  try:
    elements = list(dataset.as_numpy_iterator())
  except Exception as error:  # a user function may raise anything
    raise errors.InputError(
      'data set', 'given', f'cannot be read ({errors.reason(error)})'
    ) from error
  if not elements:
    raise errors.InputError('data set', 'no examples', 'must yield some')

  def join(*rows: Any) -> np.ndarray:
    if isinstance(rows[0], bytes):
      return np.array(rows, object)  # keeps NULs at the end
    try:
      return np.concatenate(rows) if batched else np.stack(rows)
    except ValueError:
      raise errors.InputError(
        'data set', 'rows of different shapes', 'must be of one shape'
      ) from None

  return tuple(
    arrays.map_leaves(join, *parts) for parts in zip(*elements, strict=True)
  )
