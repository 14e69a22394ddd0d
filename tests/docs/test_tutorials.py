"""The tutorials run, at a small scale, and their stored outputs are clean.

IPython runs the cells of all notebooks in this process, with new names and an
empty folder for each. Six kernels would start TensorFlow six times, which takes
longer than all cells together; what a kernel adds, displaying outputs, is what
`make tutorials` does when it stores them.
"""

import functools
import math
import os
import pathlib
import re
import sys

import matplotlib
import nbformat
import numpy as np
import pytest
from IPython.core import interactiveshell
from matplotlib import pyplot as plt
from traitlets import config

import safl_tf

ROOT = pathlib.Path(__file__).parent.parent.parent
PATHS = sorted((ROOT / 'docs' / 'tutorials').glob('*.ipynb'))
NAMES = [path.stem for path in PATHS]
COLAB = 'https://colab.research.google.com/github/safl-tf/safl_tf/blob/main/'

SITE = 'https://safl-tf.github.io/safl_tf/'


def read(number):
  [path] = [path for path in PATHS if path.name.startswith(f'{number}_')]
  return nbformat.read(path, as_version=4)


@pytest.fixture
def run(tmp_path, monkeypatch):
  """Runs a notebook with other parameters; returns the names it defines."""
  programs = pathlib.Path(sys.executable).parent
  monkeypatch.chdir(tmp_path)
  monkeypatch.setenv('IPYTHONDIR', str(tmp_path / '.ipython'))
  monkeypatch.setenv('PATH', f'{programs}{os.pathsep}{os.environ["PATH"]}')
  train = functools.partial(safl_tf.train, jit_compile='false', progress=False)
  monkeypatch.setattr(safl_tf, 'train', train)
  monkeypatch.setattr(plt, 'show', lambda: None)
  options = config.Config({'HistoryManager': {'enabled': False}})

  def run_cells(number, **parameters):
    shell = interactiveshell.InteractiveShell(config=options)
    for cell in read(number).cells:
      if cell.cell_type != 'code':
        continue
      shell.run_cell(cell.source).raise_error()
      if 'parameters' in cell.metadata.get('tags', ()):
        assert all(name in shell.user_ns for name in parameters)
        shell.user_ns.update(parameters)
        parameters = {}
    assert not parameters
    return shell.user_ns

  backend = matplotlib.get_backend()
  plt.switch_backend('agg')
  with matplotlib.rc_context():
    yield run_cells
  plt.close('all')
  plt.switch_backend(backend)


def test_safl_against_fedavg(run):
  names = run(1, ROUNDS=2, NUM_CLIENTS=9)
  assert names['ratio'] == pytest.approx(1 / math.sqrt(9), abs=0.01)
  assert names['accuracy'].shape == (2, 3)


def test_own_model_and_csv(run, capsys):
  names = run(2, ROUNDS=2, EXAMPLES=600)
  assert "x['temperature']=NaN or infinity in row 3" in capsys.readouterr().out
  assert names['clients'].num_clients == 12
  chances = names['again'].predict(names['test'][names['FEATURES']], verbose=0)
  np.testing.assert_array_equal(chances[:, 0], names['chances'])


def test_who_holds_which_labels(run):
  names = run(3, ROUNDS=2, NUM_CLIENTS=10)
  for k, row in enumerate(names['own'].label_counts()):
    assert {*np.flatnonzero(row)} == {k, (k + 1) % 10}
  assert len(names['scores']) == 10


def test_write_an_algorithm(run, capsys):
  names = run(4, ROUNDS=2, NUM_CLIENTS=2, SEEDS=[0])
  sent = {
    name: result.history[-1]['total_bytes_up']
    for name, result in names['results'].items()
  }
  share = sent['1 %, rest kept'] / sent['FedAvg, all elements']
  assert share == pytest.approx(0.02, rel=0.01)
  assert np.linalg.norm(names['kept']['rest']) > 0
  assert 'client_work.end=z float32 [22213]' in capsys.readouterr().out


def test_malicious_clients(run, capsys):
  names = run(5, ROUNDS=1, NUM_CLIENTS=5, EXAMPLES=40)
  output = capsys.readouterr().out
  assert 'mean              -0.96\nmedian             1.00' in output
  assert names['failing'].frame['dropped'].tolist() == [1]
  differ = (names['honest'] != names['attacked']).any(axis=0)
  assert differ['mean']


def test_from_a_run_to_a_server(run, capfd):
  names = run(6, ROUNDS=2, NUM_CLIENTS=4)
  accuracy = names['result'].history[-1]['test_accuracy']
  assert f'top-1    {accuracy:.2%}' in capfd.readouterr().out
  np.testing.assert_array_equal(
    names['whole'].state.z_bar, names['result'].state.z_bar
  )
  for name in ('from_keras', 'from_lite'):
    np.testing.assert_allclose(names[name], names['probabilities'], atol=1e-5)


@pytest.mark.parametrize('path', PATHS, ids=NAMES)
def test_links_to_the_site_have_a_source(path):
  links = re.findall(rf'{SITE}([^)#"]*)', path.read_text('utf-8'))
  assert links
  for link in links:
    source = ROOT / 'docs' / link
    sources = source.with_suffix('.md'), source.with_suffix('.ipynb')
    assert link.endswith('.html') and any(s.is_file() for s in sources), link


def test_all_are_there():
  assert [name[0] for name in NAMES] == list('123456')


@pytest.mark.parametrize('path', PATHS, ids=NAMES)
def test_stored_outputs_are_clean(path):
  notebook = nbformat.read(path, as_version=4)
  nbformat.validate(notebook)
  link = f'({COLAB}{path.relative_to(ROOT)})'
  assert link in notebook.cells[0].source
  assert notebook.cells[1].source.endswith('\n# %pip install safl_tf')
  code = [cell for cell in notebook.cells if cell.cell_type == 'code']
  assert [c.execution_count for c in code] == [*range(1, len(code) + 1)]
  for output in (output for cell in code for output in cell.outputs):
    assert output.output_type != 'error'
    assert output.get('name') != 'stderr'
    text = output.get('text') or output.data.get('text/plain')
    for noise in ('/work', '/tmp', '/home', 'WARNING', 'INFO', ' at 0x'):
      assert noise not in text
  assert any('image/png' in str(cell.outputs) for cell in code)
