"""Imports point one way, and what is public says what it is."""

import ast
import graphlib
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parent.parent
MODULES = {
  '.'.join(path.relative_to(ROOT).with_suffix('').parts): path
  for folder in ('safl_tf', 'binaries')
  for path in sorted((ROOT / folder).rglob('*.py'))
}
PACKAGE = [name for name in MODULES if name.startswith('safl_tf')]


def is_for_types_only(node):
  return isinstance(node, ast.If) and 'TYPE_CHECKING' in ast.dump(node.test)


def walk(node):
  """All nodes, also inside functions, but for type checkers' imports."""
  yield node
  for child in ast.iter_child_nodes(node):
    if not is_for_types_only(child):
      yield from walk(child)


def imports(name):
  """The modules of ours, and the top names of others, that one imports."""
  found = set()
  for node in walk(ast.parse(MODULES[name].read_text())):
    if isinstance(node, ast.Import):
      found |= {alias.name for alias in node.names}
    elif isinstance(node, ast.ImportFrom):
      relative = name.startswith('binaries.')  # it is installed elsewhere
      assert relative or not node.level, f'{name} has a relative import'
      base = name.split('.')[: -node.level] if node.level else []
      module = '.'.join([*base, *filter(None, [node.module])])
      for alias in node.names:
        inner = f'{module}.{alias.name}'
        package = f'{inner}.__init__'
        is_module = inner in MODULES or package in MODULES
        known = is_module or module.startswith('absl')
        found.add(inner if known else module)
  return {f'{n}.__init__' if f'{n}.__init__' in MODULES else n for n in found}


IMPORTS = {name: imports(name) for name in MODULES}


def below(name, folder):
  return name == folder or name.startswith(f'{folder}.')


RUNNING = (
  'safl_tf.core.cohort',
  'safl_tf.core.client_trainer',
  'safl_tf.core.executors',
  'safl_tf.algorithms.fed_ma',
  'safl_tf.core.process',
  'safl_tf.training.loop',
  'safl_tf.training.run_directory',
)
KEEPING = (
  'safl_tf.training.checkpoint',
  'safl_tf.training.checkpoint_io',
  'safl_tf.training.export',
  'safl_tf.util.atomic_io',
  'safl_tf.reporting.plots',
  'safl_tf.training.metrics_log',
)
FORBIDDEN = {
  'safl_tf.rules': (
    *RUNNING,
    *KEEPING,
    'safl_tf.data',
    'safl_tf.core.client_config',
    'safl_tf.models',
  ),
  'safl_tf.data': (
    *RUNNING,
    *(module for module in KEEPING if module != 'safl_tf.util.atomic_io'),
    'safl_tf.core.client_config',
    'safl_tf.models',
    'safl_tf.rules',
  ),
  'safl_tf.models': (*RUNNING, *KEEPING, 'safl_tf.data', 'safl_tf.rules'),
  'safl_tf.core.client_config': (*RUNNING, *KEEPING, 'safl_tf.data'),
  'safl_tf.core.client_update': (*RUNNING, *KEEPING, 'safl_tf.data'),
  'safl_tf.core.client_store': (*RUNNING, *KEEPING),
  'safl_tf.core.executors': (
    'safl_tf.core.process',
    'safl_tf.training.loop',
    *KEEPING,
  ),
  'safl_tf.core.process': (
    'safl_tf.training.loop',
    'safl_tf.training.run_directory',
    *KEEPING,
  ),
  'safl_tf.training.metrics_log': RUNNING,
  'safl_tf.training.checkpoint': RUNNING,
  'safl_tf': ('binaries', 'tests', 'absl.flags', 'absl.app'),
}


def test_modules_are_found():
  """The other tests look at something."""
  assert {'safl_tf.core.process', 'safl_tf.rules.mix', 'binaries.train'} < set(
    MODULES
  )
  assert 'safl_tf.rules.random_bits' in IMPORTS['safl_tf.rules.mix']
  assert 'tensorflow' in IMPORTS['safl_tf.core.client_trainer']
  assert (
    'safl_tf.core.executors.__init__' in IMPORTS['safl_tf.core.client_trainer']
  )
  assert any('absl.flags' in found for found in IMPORTS.values())


@pytest.mark.parametrize('folder', FORBIDDEN)
def test_imports_point_one_way(folder):
  wrong = [
    f'{name} imports {found}'
    for name in MODULES
    if below(name, folder)
    for found in IMPORTS[name]
    if any(below(found, other) for other in FORBIDDEN[folder])
  ]
  assert wrong == []


def test_no_module_imports_itself_in_a_circle():
  graph = {name: IMPORTS[name] & set(MODULES) for name in MODULES}
  order = list(graphlib.TopologicalSorter(graph).static_order())
  assert order.index('safl_tf.rules.mix') < order.index('safl_tf.core.process')
  assert order.index('safl_tf.core.process') < order.index(
    'safl_tf.training.loop'
  )


def test_rules_read_and_write_nothing():
  """Rules are pure: no files, no host randomness but `seeds`, no clock."""
  allowed = {
    'collections.abc',
    'dataclasses',
    'math',
    'numpy',
    'scipy',
    'tensorflow',
    'typing',
  }
  for name in MODULES:
    if below(name, 'safl_tf.rules'):
      others = {m for m in IMPORTS[name] if not m.startswith('safl_tf')}
      assert others <= allowed, name


def public(body, prefix=''):
  """Public classes, functions and methods, with their names."""
  for node in body:
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    if isinstance(node, kinds) and not node.name.startswith('_'):
      yield f'{prefix}{node.name}', node
      if isinstance(node, ast.ClassDef):
        yield from public(node.body, f'{prefix}{node.name}.')


@pytest.mark.parametrize('name', MODULES)
def test_docstrings(name):
  tree = ast.parse(MODULES[name].read_text())
  missing = [] if ast.get_docstring(tree) else ['the module']
  missing += [n for n, node in public(tree.body) if not ast.get_docstring(node)]
  assert missing == []


def test_the_loop_fits_on_one_screen():
  tree = ast.parse(MODULES['safl_tf.core.process'].read_text())
  loop = dict(public(tree.body))['FederatedProcess.next']
  assert loop.end_lineno - loop.lineno < 40
