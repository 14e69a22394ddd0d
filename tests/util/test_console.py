import io
import sys
import types
import warnings

import pytest

from safl_tf.util import console


class Terminal(io.StringIO):
  def isatty(self):
    return True


def kernel(app):
  """A module IPython whose shell was started by an application."""
  shell = types.SimpleNamespace(config={app: {}})
  return types.SimpleNamespace(get_ipython=lambda: shell)


def shown(progress=None, file=None):
  stream = io.StringIO() if file is None else file
  with console.progress_bar(progress, total=2, file=stream) as bar:
    bar.update()
  return stream.getvalue() != ''


def test_bars_are_shown_where_users_see_them():
  assert shown(file=Terminal())
  assert not shown()
  assert shown(True)
  assert not shown(False, Terminal())


@pytest.mark.parametrize(
  'app, expected', [('IPKernelApp', True), ('TerminalIPythonApp', False)]
)
def test_bars_are_shown_in_notebooks(monkeypatch, app, expected):
  monkeypatch.setitem(sys.modules, 'IPython', kernel(app))
  assert console.in_notebook() == expected
  assert shown() == expected
  assert not shown(False)


def test_no_notebook(monkeypatch):
  monkeypatch.delitem(sys.modules, 'IPython', raising=False)
  assert not console.in_notebook()
  plain = types.SimpleNamespace(get_ipython=lambda: None)
  monkeypatch.setitem(sys.modules, 'IPython', plain)
  assert not console.in_notebook()


def test_notebooks_without_widgets_get_no_warning(monkeypatch):
  for name in [name for name in sys.modules if name.startswith('tqdm')]:
    monkeypatch.delitem(sys.modules, name)
  monkeypatch.setitem(sys.modules, 'IPython', kernel('IPKernelApp'))
  monkeypatch.setitem(sys.modules, 'ipykernel.zmqshell', None)  # for tqdm
  monkeypatch.setitem(sys.modules, 'ipywidgets', None)
  with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter('always')
    assert shown()
  assert caught == []
