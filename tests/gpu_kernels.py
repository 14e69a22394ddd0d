"""Finds what a traced function could not do on a GPU, without having one."""

import functools

import numpy as np
import tensorflow as tf
from tensorflow.python.eager.polymorphic_function import compiler_ir
from tensorflow.python.framework import kernels

STACK = 2  # clients of a stack in these tests
# What TensorFlow may do on the CPU meanwhile: numbers that it keeps in host
# memory anyway, and the seeds of its random numbers, a few for each client.
_ON_HOST = {
  ('Const', 'string'),  # a message of Assert
  ('TensorListSetItem', 'int8'),  # what cuDNN leaves in host memory
  ('TensorListStack', 'int8'),
}
_SEEDS = {'uint32', 'uint64'}
_MAX_SEEDS = 4


def operations(function):
  """Yields all operations of a concrete function and of those it calls."""
  graphs, names = [function.graph], set()
  while graphs:
    graph = graphs.pop()
    for op in graph.get_operations():
      yield op
      for name in _called(op.node_def) - names:
        names.add(name)
        graphs.append(graph._get_function(name).graph)


def _called(node):
  """The names of the functions in a node's attributes."""
  values = node.attr.values()
  functions = [v.func for v in values if v.WhichOneof('value') == 'func']
  functions += [f for v in values for f in v.list.func]
  return {f.name for f in functions}


def without_kernel(function):
  """The operations that no GPU kernel computes: 'type of dtypes'."""
  missing = {
    _describe(op)
    for op in operations(function)
    if not _has_kernel(op.node_def) and not _may_be_on_cpu(op)
  }
  return sorted(missing)


def placed_on_cpu(function):
  """The operations that ask for the CPU: 'type (name)'."""
  return sorted(
    f'{op.type} ({op.name})'
    for op in operations(function)
    if 'CPU' in op.device.upper()
  )


def lower_for_gpu(function):
  """Returns the HLO of a concrete function for a GPU; XLA raises if it cannot.

  Dimensions that are not known when it is traced are two.
  """
  specs = tf.nest.flatten(function.structured_input_signature)
  specs = [
    tf.TensorSpec([2 if n is None else n for n in spec.shape], spec.dtype)
    for spec in specs
  ]
  make = compiler_ir.from_concrete_function(function, specs)
  return make(stage='hlo', platform_name='GPU')


def _has_kernel(node):
  """Whether a kernel for GPUs, or for any device, takes a node's dtypes."""
  return any(
    kernel.device_type in ('GPU', 'DEFAULT')
    and not kernel.label
    and all(_allows(c, node.attr[c.name]) for c in kernel.constraint)
    for kernel in _kernels(node.op)
  )


@functools.cache
def _kernels(op_type):
  return kernels.get_registered_kernels_for_op(op_type).kernel


def _allows(constraint, value):
  if constraint.allowed_values.list.type:
    is_type = value.WhichOneof('value') == 'type'
    found = [value.type] if is_type else value.list.type
    return set(found) <= set(constraint.allowed_values.list.type)
  return value.s in constraint.allowed_values.list.s


def _dtypes(op):
  """Attribute -> the name of its dtype."""
  return {
    name: tf.as_dtype(value.type).name
    for name, value in sorted(op.node_def.attr.items())
    if value.WhichOneof('value') == 'type'
  }


def _describe(op):
  dtypes = ', '.join(f'{k}={v}' for k, v in _dtypes(op).items())
  return f'{op.type} of {dtypes}' if dtypes else op.type


def _may_be_on_cpu(op):
  dtypes = set(_dtypes(op).values())
  if any((op.type, dtype) in _ON_HOST for dtype in dtypes):
    return True
  if not dtypes & _SEEDS:
    return False
  if op.type == 'TensorListSetItem':  # of what TensorListStack returns
    return True
  sizes = [tensor.shape.num_elements() or np.inf for tensor in op.outputs]
  return max(sizes) <= _MAX_SEEDS * STACK
