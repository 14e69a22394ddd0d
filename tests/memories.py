"""Memories of aggregators: arrays, and stores of an array per client."""

from safl_tf.core import client_store


def to_arrays(memory):
  """Copies of all arrays; of a store, the clients and their arrays."""
  result = {}
  for name, value in memory.items():
    if isinstance(value, client_store.ClientStore):
      parts = value.to_arrays()
      result |= {f'{name}/{part}': array for part, array in parts.items()}
    else:
      result[name] = value.copy()
  return result


def from_arrays(start, arrays):
  """The memory that has these arrays, from the initial one."""
  memory = {}
  for name, value in start.items():
    if isinstance(value, client_store.ClientStore):
      ids, rows = (arrays[f'{name}/{part}'] for part in ('ids', 'arrays'))
      value = value.updated(dict(zip(ids.tolist(), rows, strict=True)))
      memory[name] = value
    else:
      memory[name] = arrays[name]
  return memory


def freeze(memory):
  """Makes all arrays raise if they are written to."""
  for value in memory.values():
    arrays = [value]
    if isinstance(value, client_store.ClientStore):
      arrays = [value[k] for k in value.versions]
    for array in arrays:
      array.setflags(write=False)
