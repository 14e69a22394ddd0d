"""Every public name has an example that runs, and a place in the reference."""

import contextlib
import doctest
import functools
import inspect
import pathlib
import re

import pytest

import safl_tf
from safl_tf.deployment import real_clients
from safl_tf.deployment.flower import client_app, grid_transport, link, resident
from tests.deployment import loopback
from tests.docs import command_line

FOLDER = pathlib.Path(__file__).parents[2] / 'docs' / 'reference'
MODULES = ('aggregate', 'client_work', 'gate', 'mix', 'partition', 'select')
NO_DOCSTRING = ('__version__', *MODULES)  # a text, and modules of rules
# Rules that users write.
TYPES = ('aggregate.Aggregator', 'client_work.ClientWork', 'gate.Gate')
FENCE = re.compile(r'^```(python|pycon)\n(.*?)^```$', re.DOTALL | re.MULTILINE)
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def functions(module):
  """The public functions of a module, and those that it re-exports."""
  names = getattr(module, '__all__', dir(module))
  values = {name: getattr(module, name) for name in names if name[0] != '_'}
  return {
    name: value
    for name, value in values.items()
    if inspect.isfunction(value) and value.__module__.startswith('safl_tf')
  }


def find():
  """The objects of the reference that must have an example, by name."""
  found = {
    name: getattr(safl_tf, name)
    for name in safl_tf.__all__
    if name not in NO_DOCSTRING
  }
  for module in MODULES:
    for name, value in functions(getattr(safl_tf, module)).items():
      found[f'{module}.{name}'] = value
  for name in TYPES:
    module, _, kind = name.partition('.')
    found[name] = getattr(getattr(safl_tf, module), kind)
  for name, value in functions(real_clients).items():
    found[f'real_clients.{name}'] = value
  return found


def code(value):
  """The blocks of an object's examples: kind and text."""
  text = (inspect.getdoc(value) or '').partition('\nExample:\n')[2]
  return FENCE.findall(inspect.cleandoc(f'\n{text}'))


def methods(names):
  """The methods of classes that have examples of their own."""
  return {
    f'{name}.{method}': value
    for name, kind in names.items()
    if inspect.isclass(kind)
    for method, value in inspect.getmembers(kind, callable)
    if method[0] != '_' and getattr(value, '__module__', '') == kind.__module__
    if code(value)
  }


PUBLIC = find()
EXAMPLES = PUBLIC | methods(PUBLIC)
# A server waits for its clients.
BEFORE = {'real_clients.train': 'real_clients.run_client'}


@pytest.fixture(scope='module')
def setup():
  """The names that the examples share, as the reference defines them."""
  [(_, block)] = FENCE.findall((FOLDER / 'index.md').read_text())
  names = {}
  exec(block, names)
  return names


@pytest.fixture
def quick(monkeypatch, tmp_path):
  """Runs train without XLA, and write no plots; clients are in this process."""
  from safl_tf.core import process
  from safl_tf.reporting import sweep
  from safl_tf.training import loop, outputs

  grid = loopback.LoopbackGrid()

  @contextlib.contextmanager
  def connected(address, security, home, round_timeout):
    yield grid_transport.GridTransport(grid)

  def run(client, server, home, max_wait, once):
    grid.apps[100] = client_app.create(client.handle)

  monkeypatch.setattr(link, 'connected', connected)
  monkeypatch.setattr(resident, 'run', run)
  monkeypatch.setattr(outputs, 'write', lambda *args: None)
  monkeypatch.setattr(sweep, 'write', lambda *args: '')
  make = functools.partial(process.FederatedProcess, jit_compile='false')
  monkeypatch.setattr(safl_tf, 'FederatedProcess', make)
  train = functools.partial(loop.train, jit_compile='false', progress=False)
  monkeypatch.setattr(safl_tf, 'train', train)
  for name, function in functions(real_clients).items():
    quick = functools.partial(function, jit_compile='false', max_wait=30.0)
    monkeypatch.setattr(real_clients, name, quick)
  monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize('name', PUBLIC)
def test_has_an_example(name):
  assert code(PUBLIC[name]), f'{name} has no Example: section with a fence'


def run(name, names):
  """Runs the examples of a name; returns the names that they define, too."""
  for kind, block in code(EXAMPLES[name]):
    if kind == 'python':
      exec(compile(block, f'example of {name}', 'exec'), names)
      continue
    test = doctest.DocTestParser().get_doctest(block, names, name, None, 0)
    output = []
    runner = doctest.DocTestRunner(verbose=False, optionflags=FLAGS)
    failed, tried = runner.run(test, out=output.append, clear_globs=False)
    assert tried and not failed, ''.join(output)
    names = test.globs
  return names


def test_reference_is_complete():
  text = '\n'.join(path.read_text() for path in FOLDER.glob('*.md'))
  blocks = re.findall(r'^::: safl_tf\.(\S+)$', text, re.MULTILINE)
  # A module of rules may have the name of its function.
  shown = {re.sub(r'\.(\w+)\.\1$', r'.\1', block) for block in blocks}
  shown = {name.removeprefix('deployment.') for name in shown}
  assert shown >= {*PUBLIC, *MODULES}
  index = (FOLDER / 'index.md').read_text()
  for name in safl_tf.__all__:
    assert f'[safl_tf.{name}]' in index or f'safl_tf.{name}`' in index, name


def test_command_line_is_current():
  """Else: python -m tests.docs.command_line."""
  assert command_line.PAGE.read_text() == command_line.page()


@pytest.mark.usefixtures('quick')
@pytest.mark.parametrize('name', EXAMPLES)
def test_example_runs(name, setup):
  names = dict(setup)
  if name in BEFORE:
    names = run(BEFORE[name], names)
  run(name, names)
