"""The direction of imports, the size of core's closure, and docstrings."""

import ast
import graphlib
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent
MODULES = {
  '.'.join(path.relative_to(ROOT).with_suffix('').parts): path
  for folder in ('safl_tf', 'binaries')
  for path in sorted((ROOT / folder).rglob('*.py'))
}
# Package -> what it may import of the others. A module in place of a package
# allows just that module.
ALLOWED = {
  'util': (),
  'models': ('util',),
  'data': ('core.seeds', 'util'),
  'core': ('data.arrays', 'data.client_data', 'models.fast', 'util'),
  'rules': (
    'core.algorithm',
    'core.client_store',
    'core.layout',
    'core.seeds',
    'util',
  ),
  'attacks': ('core', 'data', 'util'),
  'algorithms': ('core', 'rules', 'util'),
  'training': (
    'algorithms',
    'attacks',
    'core',
    'data',
    'reporting',
    'util',
    'version',
  ),
  'deployment': (
    'algorithms.safl',
    'core',
    'data',
    'training',
    'util',
    'version',
  ),
  'reporting': ('util',),
  'experiments': (
    'algorithms',
    'core',
    'data',
    'reporting',
    'rules',
    'training',
    'util',
  ),
}
PROCESS = 'safl_tf.core.process'
MAX_CLOSURE = 25


def is_for_types_only(node):
  return isinstance(node, ast.If) and 'TYPE_CHECKING' in ast.dump(node.test)


def walk(node):
  """All nodes, also inside functions, except type checkers' imports."""
  yield node
  for child in ast.iter_child_nodes(node):
    if not is_for_types_only(child):
      yield from walk(child)


def imports(name):
  """The modules of ours, and the top names of others, that one imports."""
  is_package = name.endswith('.__init__')
  package = name.removesuffix('.__init__').split('.')
  package = package if is_package else package[:-1]
  imported = set()
  for node in walk(ast.parse(MODULES[name].read_text())):
    if isinstance(node, ast.Import):
      imported |= {alias.name for alias in node.names}
    elif isinstance(node, ast.ImportFrom):
      base = node.module or ''
      if node.level:
        assert package[0] == 'binaries', f'{name} has a relative import'
        parents = package[: len(package) - node.level + 1]
        base = '.'.join([*parents, *filter(None, [node.module])])
      for alias in node.names:
        inner = f'{base}.{alias.name}'
        is_module = inner in MODULES or f'{inner}.__init__' in MODULES
        known = is_module or base.startswith('absl')
        imported.add(inner if known else base)
  return {
    f'{n}.__init__' if f'{n}.__init__' in MODULES else n for n in imported
  }


IMPORTS = {name: imports(name) for name in MODULES}


def below(name, folder):
  return name == folder or name.startswith(f'{folder}.')


def test_modules_are_found():
  """The other tests look at something."""
  assert {PROCESS, 'safl_tf.rules.mix', 'binaries.train'} < set(MODULES)
  assert 'safl_tf.rules.random_bits' in IMPORTS['safl_tf.rules.mix']
  assert 'tensorflow' in IMPORTS['safl_tf.core.client_trainer']
  executors = 'safl_tf.core.executors.__init__'
  assert executors in IMPORTS['safl_tf.core.client_trainer']
  assert any('absl.flags' in names for names in IMPORTS.values())
  folders = {name.split('.')[1] for name in MODULES if below(name, 'safl_tf')}
  assert folders == set(ALLOWED) | {'__init__', 'version'}


def test_top_of_the_package_is_small():
  assert len(list((ROOT / 'safl_tf').glob('*.py'))) <= 5


@pytest.mark.parametrize('folder', ALLOWED)
def test_imports_point_one_way(folder):
  allowed = [f'safl_tf.{name}' for name in (folder, *ALLOWED[folder])]
  wrong = [
    f'{name} imports {imported}'
    for name in MODULES
    if below(name, f'safl_tf.{folder}')
    for imported in IMPORTS[name]
    if below(imported, 'safl_tf')
    and not any(below(imported, other) for other in allowed)
  ]
  assert wrong == []


def test_the_library_does_not_read_flags():
  forbidden = ('binaries', 'tests', 'absl.flags', 'absl.app')
  wrong = [
    f'{name} imports {imported}'
    for name in MODULES
    if below(name, 'safl_tf')
    for imported in IMPORTS[name]
    if any(below(imported, other) for other in forbidden)
  ]
  assert wrong == []


def test_one_package_knows_flower():
  """So that another transport can take its place."""
  for name, imported in IMPORTS.items():
    if not below(name, 'safl_tf.deployment.flower'):
      assert not any(below(module, 'flwr') for module in imported), name


def test_imports_have_no_cycle():
  graph = {name: IMPORTS[name] & set(MODULES) for name in MODULES}
  order = list(graphlib.TopologicalSorter(graph).static_order())
  assert order.index('safl_tf.core.algorithm') < order.index(PROCESS)
  assert order.index(PROCESS) < order.index('safl_tf.training.loop')


def test_closure_of_the_process_is_small():
  """Counts what importing it really loads, packages included."""
  script = (
    f'import sys, {PROCESS}; '
    'print(*(m for m in sys.modules if m.split(".")[0] == "safl_tf"))'
  )
  done = subprocess.run(
    [sys.executable, '-c', script],
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=True,
  )
  loaded = done.stdout.split()
  assert PROCESS in loaded
  assert len(loaded) <= MAX_CLOSURE, sorted(loaded)
  for package in ('algorithms', 'attacks', 'data.partition', 'rules'):
    assert not any(below(name, f'safl_tf.{package}') for name in loaded)


def test_rules_read_and_write_nothing():
  """Rules are pure: no files, no host randomness but `seeds`, no clock."""
  allowed = {'collections.abc', 'numpy', 'tensorflow', 'typing'}
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
  tree = ast.parse(MODULES[PROCESS].read_text())
  loop = dict(public(tree.body))['FederatedProcess.next']
  assert loop.end_lineno - loop.lineno < 40
