"""Recognizes equal graphs, whatever their nodes and functions are called."""

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import op_def_registry

# Attributes of nodes that only say where they come from.
_LABELS = ('_user_specified_name', '_gradient_op_type')
# Operations that TensorFlow calls stateful, but whose state is an argument.
_STATELESS = frozenset(
  {'Assert', 'If', 'ReadVariableOp', 'StatefulPartitionedCall', 'While'}
)


def of(concrete: Any) -> str | None:
  """Returns a digest of what a traced function computes.

  It covers operations, attributes, constants, shapes and types, and the
  structure of the outputs, but not the values that the function captures:
  functions with equal digests differ in these alone.

  Args:
    concrete: a `tf.types.experimental.ConcreteFunction`.

  Returns:
    The digest; None if operations have a state of their own, such as random
    numbers that go on from call to call.
  """
  graph = concrete.graph.as_graph_def(add_shapes=True)
  if not all(map(_is_stateless, _nodes(graph))):
    return None
  names = _Names(node.name for node in graph.node)
  inputs = [names(tensor.name) for tensor in concrete.inputs]
  given = {tensor.op.name for tensor in concrete.inputs}
  outputs = [names(tensor.name) for tensor in concrete.outputs]
  structure = tf.nest.map_structure(
    lambda tensor: (tensor.dtype.name, str(tensor.shape)),
    concrete.structured_outputs,
  )
  for node in graph.node:
    if node.name in given:  # small captured tensors have their values there
      node.attr.pop('value', None)
  functions = {f.signature.name: f for f in graph.library.function}
  order: list[str] = []
  _rename(graph.node, names, functions, order)
  for name in order:  # grows while functions are found that they call
    _rename_function(functions[name], functions, order)
  known = [functions.pop(name) for name in order]
  attributes = concrete.function_def.attr
  parts = [
    repr((inputs, outputs, structure)).encode(),
    *(_bytes(attributes[name]) for name in sorted(attributes)),
    *map(_bytes, graph.node),
    *map(_bytes, known),
    # What nothing calls, or calls in another way, has its own name.
    *(_bytes(functions[name]) for name in sorted(functions)),
    *map(_bytes, graph.library.gradient),
  ]
  digest = hashlib.sha256()
  for part in parts:
    digest.update(len(part).to_bytes(8, 'big') + part)
  return digest.hexdigest()


def _nodes(graph: Any) -> Iterator[Any]:
  yield from graph.node
  for function in graph.library.function:
    yield from function.node_def


def _is_stateless(node: Any) -> bool:
  definition = op_def_registry.get(node.op)
  return node.op in _STATELESS or (
    definition is not None and not definition.is_stateful
  )


class _Names:
  """Replaces the names of nodes by their numbers."""

  def __init__(self, names: Iterable[str]):
    self._numbers = {name: str(i) for i, name in enumerate(names)}

  def __call__(self, tensor: str) -> str:
    control = tensor.startswith('^')
    name, colon, rest = tensor.removeprefix('^').partition(':')
    return '^' * control + self._numbers.get(name, name) + colon + rest


def _rename(
  nodes: Iterable[Any],
  names: _Names,
  functions: dict[str, Any],
  order: list[str],
) -> None:
  """Renames nodes and what they refer to; adds new functions to the order."""
  for node in nodes:
    node.name = names(node.name)
    node.input[:] = map(names, node.input)
    node.ClearField('experimental_debug_info')
    _remove_labels(node.attr)
    for key in sorted(node.attr):
      for called in _called(node.attr[key]):
        if called.name in functions:
          if called.name not in order:
            order.append(called.name)
          called.name = f'function {order.index(called.name)}'


def _called(attribute: Any) -> Iterator[Any]:
  """Yields the functions in an attribute."""
  if attribute.HasField('func'):
    yield attribute.func
  yield from attribute.list.func


def _rename_function(
  function: Any, functions: dict[str, Any], order: list[str]
) -> None:
  """Renames a function, its arguments, nodes and results by their numbers."""
  signature = function.signature
  arguments = [argument.name for argument in signature.input_arg]
  names = _Names([*arguments, *(node.name for node in function.node_def)])
  signature.name = ''
  for i, argument in enumerate(signature.input_arg):
    argument.name = str(i)
    _remove_labels(function.arg_attr[i].attr)
  for i, result in enumerate(signature.output_arg):
    function.ret[f'result {i}'] = names(function.ret.pop(result.name))
    result.name = f'result {i}'
  for i, control in enumerate(signature.control_output):
    node = names(function.control_ret.pop(control))
    function.control_ret[f'control {i}'] = node
    signature.control_output[i] = f'control {i}'
  _rename(function.node_def, names, functions, order)


def _remove_labels(attributes: Any) -> None:
  for label in _LABELS:
    attributes.pop(label, None)


def _bytes(message: Any) -> bytes:
  return message.SerializeToString(deterministic=True)
