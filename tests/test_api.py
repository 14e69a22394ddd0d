import ast
import pathlib
import subprocess
import sys

import pytest

import safl_tf
from safl_tf.algorithms import registry
from safl_tf.core import executors, losses, optimizer
from safl_tf.data import partition
from safl_tf.util import choices

ROOT = pathlib.Path(safl_tf.__file__).parent.parent


@pytest.mark.parametrize('name', safl_tf.__all__)
def test_public_names_resolve(name):
  assert getattr(safl_tf, name) is not None
  assert name in dir(safl_tf)


def test_nothing_else_resolves():
  with pytest.raises(AttributeError, match=r"'safl_tf' has no attribute 'tff'"):
    safl_tf.tff  # noqa: B018


def test_stub_and_package_agree():
  """Type checkers and users find each public name in the same place."""
  tree = ast.parse((ROOT / 'safl_tf' / '__init__.pyi').read_text())
  homes = {
    alias.name: f'{node.module}.{alias.name}'
    for node in tree.body
    for alias in node.names
    if alias.asname == alias.name  # re-exported
  }
  assert sorted(homes) == safl_tf.__all__ == dir(safl_tf)
  for name, path in homes.items():
    value = getattr(safl_tf, name)
    if hasattr(value, '__qualname__'):
      assert f'{value.__module__}.{value.__qualname__}' == path
    elif name != '__version__':
      assert value.__name__ == path  # a module


def test_import_is_cheap():
  """Programs check flags before TensorFlow is imported."""
  script = (
    'import sys, safl_tf; '
    'from safl_tf.util import choices, errors, validation; '
    'safl_tf.InputError; safl_tf.__version__; dir(safl_tf); '
    'safl_tf.partition.by_labels(3); '
    'print([m for m in ("tensorflow", "keras", "matplotlib", "pandas") '
    'if m in sys.modules])'
  )
  done = subprocess.run(
    [sys.executable, '-c', script],
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=True,
  )
  assert done.stdout.strip() == '[]'


def test_names_are_what_there_is():
  assert tuple(registry.BUILDERS) == choices.ALGORITHMS
  assert ('auto', *executors.EXECUTORS, 'ray') == choices.EXECUTORS


@pytest.mark.parametrize('name', choices.OPTIMIZERS)
def test_every_optimizer_is_known(name):
  assert float(optimizer.get(name, 0.25).learning_rate) == 0.25


@pytest.mark.parametrize('name', choices.LOSSES)
def test_every_loss_is_known(name):
  assert callable(losses.get(name, True))


def test_models_and_partitions_have_functions():
  for name in choices.MODELS:
    assert callable(getattr(safl_tf, name))
  for name in choices.PARTITIONS:
    assert hasattr(
      partition, {'client': 'by_client', 'labels': 'by_labels'}.get(name, name)
    )
