"""Checks of user arrays: inputs and index lists.

Inputs are one array, or a tuple or dict of arrays for models with several
inputs, of numbers or text. Error messages call an array 'x', 'x[0]' or
"x['image']".
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from safl_tf.util import errors

_BLOCK = 1 << 22  # elements checked for NaN at once


def map_leaves(function: Callable[..., Any], x: Any, *more: Any) -> Any:
  """Applies `function` to each array of x, and of structures like it."""
  if isinstance(x, tuple):
    return tuple(function(*leaves) for leaves in zip(x, *more, strict=True))
  if isinstance(x, dict):
    return {key: function(x[key], *(m[key] for m in more)) for key in x}
  return function(x, *more)


def named_leaves(x: Any) -> list[tuple[str, np.ndarray]]:
  """Returns the name and the value of each array of x."""
  if isinstance(x, tuple):
    return [(f'x[{i}]', leaf) for i, leaf in enumerate(x)]
  if isinstance(x, dict):
    return [(f'x[{key!r}]', leaf) for key, leaf in x.items()]
  return [('x', x)]


def map_spec(function: Callable[[dict[str, Any]], Any], spec: Any) -> Any:
  """Maps over a model's `input_spec`, whose leaves are {'shape', 'dtype'}."""
  if isinstance(spec, dict) and set(spec) == {'shape', 'dtype'}:
    return function(spec)
  if isinstance(spec, dict):
    return {name: map_spec(function, part) for name, part in spec.items()}
  return [map_spec(function, part) for part in spec]


def zeros_like_spec(spec: Any) -> Any:
  """Returns a batch of two zero inputs."""
  dtype = lambda s: 'S1' if s['dtype'] == 'string' else s['dtype']
  return map_spec(lambda s: np.zeros((2, *s['shape']), dtype(s)), spec)


def array(name: str, value: Any) -> np.ndarray:
  """Converts a value to an array, without a copy if possible."""
  kind = type(value).__name__
  if np.ma.is_masked(value):
    raise errors.InputError(
      name, kind, 'must have no masked values; drop or fill them'
    )
  try:
    converted = np.asarray(value)
  except ValueError:
    raise errors.InputError(
      name, 'rows of different shapes', 'must be an array'
    ) from None
  except Exception as error:  # conversions of other libraries raise anything
    raise errors.InputError(
      name, kind, f'must be an array ({errors.reason(error)})'
    ) from error
  if converted.dtype.kind == 'O' and converted.ndim == 0:
    raise errors.InputError(
      name, kind, 'must be an array; convert it to one, as numpy.array does'
    )
  return converted


def is_unicode(text: str) -> bool:
  """Returns whether text can be written: it has no lone surrogates."""
  return text.isascii() or text == text.encode('utf-8', 'ignore').decode()


def inputs(x: Any, rows: int) -> Any:
  """Checks inputs, as `ClientData.from_arrays` takes them, for `rows` labels.

  Returns:
    x, with a list turned into a tuple, and text as UTF-8 in bytes of one
    length; numbers are not copied.
  """
  x = _structure(x)
  for name, leaf in named_leaves(x):
    if leaf.dtype.kind not in 'biufS':
      raise errors.InputError(
        name, f'array of {leaf.dtype}', 'must hold numbers or text'
      )
    if leaf.dtype.kind != 'S' and leaf.dtype.itemsize > 8:
      raise errors.InputError(
        name, f'array of {leaf.dtype}', 'must be float64 or smaller'
      )
    if leaf.ndim == 0 or len(leaf) != rows:
      raise errors.InputError(
        name,
        f'array of shape {list(leaf.shape)}',
        f'must have one row for each of the {rows} labels in y',
      )
    if leaf.size == 0:
      raise errors.InputError(
        name, f'array of shape {list(leaf.shape)}', 'must hold numbers'
      )
    check_finite(name, leaf)
  return x


def is_frame(value: Any) -> bool:
  """Returns whether a value is a pandas DataFrame."""
  return hasattr(value, 'columns') and hasattr(value, 'dtypes')


def from_frame(name: str, frame: Any) -> Any:
  """Converts a pandas DataFrame.

  Returns:
    Numbers [N, columns] if all columns are numbers, else a dict of columns.
  """
  columns: dict[str, np.ndarray] = {}
  for i, column in enumerate(map(str, frame.columns)):
    place = f'{name}[{column!r}]'
    if column in columns:
      raise errors.InputError(place, 'two columns', 'must be there only once')
    columns[column] = _inputs(place, frame.iloc[:, i])
    check_finite(place, columns[column])
  if columns and all(c.dtype.kind in 'biuf' for c in columns.values()):
    return np.stack(list(columns.values()), axis=1)
  return columns or np.asarray(frame)


def texts(name: str, values: np.ndarray) -> list[str]:
  """Returns text, or bytes of UTF-8, of any shape as a flat list.

  Refuses missing values (None, NaN) and other objects, naming the row.
  """
  row_size = max(values.size // max(len(values), 1), 1)
  found = values.ravel().tolist()
  for i, value in enumerate(found):
    if isinstance(value, bytes):
      try:
        found[i] = value.decode()
      except UnicodeDecodeError:
        place = f'bytes in row {i // row_size}'
        raise errors.InputError(name, place, 'must be UTF-8') from None
    elif not isinstance(value, str):
      if _is_missing(value):
        place = f'a missing value in row {i // row_size}'
        raise errors.InputError(name, place, 'must be there; drop or fill it')
      raise errors.InputError(
        name, f'array of {values.dtype}', 'must hold numbers or text'
      )
    elif not is_unicode(value):
      place = f'{value!a} in row {i // row_size}'
      raise errors.InputError(name, place, 'must be Unicode')
  return found


def check_alike(x: Any, first: Any) -> None:
  """Refuses inputs whose rows differ from `first` in type or shape."""
  row_types = lambda x: [
    (name, describe_rows(leaf)) for name, leaf in named_leaves(x)
  ]
  if row_types(x) != row_types(first):
    here, there = (
      ', '.join(row_type for _, row_type in row_types(inputs))
      for inputs in (x, first)
    )
    raise errors.InputError(
      'x', f'rows of {here}', f"must be like the first client's: {there}"
    )


def describe_rows(values: np.ndarray) -> str:
  """Returns the type and the shape of a row, such as 'float32 [28, 28]'."""
  kind = 'text' if values.dtype.kind == 'S' else values.dtype
  return f'{kind} {list(values.shape[1:])}'


def flatten(
  parts: Sequence[Any] | np.ndarray, names: Sequence[str], total: int
) -> tuple[np.ndarray, np.ndarray]:
  """Checks index lists and concatenates them.

  Args:
    parts: the rows of each client, in 0..total-1.
    names: the clients' names, for error messages.
    total: N, the number of rows.

  Returns:
    flat int32 [sum m_k] and offsets int64 [n + 1], both read-only; the rows of
    client k are flat[offsets[k] : offsets[k + 1]].
  """
  lists = []
  for name, part in zip(names, parts, strict=True):
    rows = array('partition', part)
    if rows.size == 0:
      raise errors.InputError(
        'partition', f'no examples for client {name}', 'must give it some'
      )
    if rows.ndim != 1 or rows.dtype.kind not in 'iu':
      raise errors.InputError(
        'partition',
        f'{rows.dtype} {list(rows.shape)} for client {name}',
        'must be a list of row numbers',
      )
    if rows.min() < 0 or rows.max() >= total:
      outside = rows[(rows < 0) | (rows >= total)]
      raise errors.InputError(
        'partition',
        f'row {outside[0]} for client {name}',
        f'must be in [0, {total - 1}]',
      )
    lists.append(rows)
  flat = np.concatenate(lists, dtype=np.int32, casting='unsafe')
  offsets = np.cumsum([0, *map(len, lists)], dtype=np.int64)
  flat.setflags(write=False)
  offsets.setflags(write=False)
  return flat, offsets


def _structure(x: Any) -> Any:
  """Converts inputs to an array, or a non-empty tuple or dict of arrays."""
  if is_frame(x):
    return from_frame('x', x)
  if isinstance(x, Mapping) and x:
    return {key: _inputs(f'x[{key!r}]', leaf) for key, leaf in x.items()}
  several = isinstance(x, list | tuple) and x
  if several and all(getattr(leaf, 'shape', ()) for leaf in x):
    return tuple(_inputs(f'x[{i}]', leaf) for i, leaf in enumerate(x))
  return _inputs('x', x)


def _inputs(name: str, value: Any) -> np.ndarray:
  """Converts a value to numbers of native byte order, or bytes of UTF-8."""
  converted = array(name, value)
  if converted.dtype.kind in 'USO' and converted.ndim:
    if converted.dtype.kind != 'O' and not isinstance(value, np.ndarray):
      converted = np.asarray(value, object)  # keeps NULs at the end
    return _encode(name, converted)
  if converted.dtype.isnative:
    return converted
  return converted.astype(converted.dtype.newbyteorder('='))


def _encode(name: str, values: np.ndarray) -> np.ndarray:
  """Returns text as UTF-8, in bytes of the length of the longest one."""
  from safl_tf.util import bounded_io

  encoded = [text.encode() for text in texts(name, values)]
  width = max(map(len, encoded), default=0)
  reason = bounded_io.shortage(width * len(encoded))
  if reason is not None:
    raise errors.InputError(name, f'text of up to {width} bytes', reason)
  for i, text in enumerate(encoded):
    if text.endswith(b'\0'):
      row = i * len(values) // len(encoded)
      place = f'{text.decode()!a} in row {row}'
      raise errors.InputError(name, place, 'must not end with NUL')
  return np.array(encoded, bytes).reshape(values.shape)


def _is_missing(value: Any) -> bool:
  """Returns whether a value is None, NaN, or pandas' NA or NaT."""
  if value is None or type(value).__name__ == 'NAType':
    return True
  try:
    return bool(value != value)
  except (TypeError, ValueError):
    return False


def check_finite(name: str, x: np.ndarray) -> None:
  """Refuses NaN and infinity, a block of rows at a time."""
  if x.dtype.kind != 'f':
    return
  rows = max(_BLOCK * len(x) // max(x.size, 1), 1)
  for start in range(0, len(x), rows):
    finite = np.isfinite(x[start : start + rows])
    if not finite.all():
      row = start + int(np.argmin(finite.reshape(len(finite), -1).all(axis=1)))
      raise errors.InputError(
        name, f'NaN or infinity in row {row}', 'must hold finite numbers'
      )
