"""The Python code of the pages runs."""

import functools
import re
import sys
from unittest import mock

import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

import safl_tf
from safl_tf.deployment import real_clients
from safl_tf.training import export
from tests import tiny
from tests.docs import pages

# Pages whose code needs more than values; other folders have their own tests.
SPECIAL = (
  'how_to/deploy.md',
  'how_to/export_and_serve.md',
  'how_to/own_algorithm.md',
  'how_to/runs.md',
  'how_to/scale_out.md',
  'start.md',
)
FOLDERS = ('reference/', 'tutorials/')
PAGES = [
  name
  for name in pages.with_code()
  if name not in SPECIAL and not name.startswith(FOLDERS)
]
LIBRARIES = {'safl_tf': safl_tf, 'keras': keras, 'tf': tf}


def task(y, **output):
  """Returns 60 examples of three clients, 30 for testing, and a model."""
  x, _ = tiny.blobs(len(y))
  parts = np.split(np.arange(60), 3)
  return {
    'clients': safl_tf.ClientData.from_arrays(x[:60], y[:60], parts),
    'test_data': (x[60:], y[60:]),
    'x_test': x[60:],
    'y_test': y[60:],
    'make_model': lambda: keras.Sequential(
      [keras.Input((8,)), keras.layers.Dense(**output)]
    ),
  }


def classes():
  return task(tiny.blobs(90)[1], units=3, activation='softmax')


def models():
  prices = task(np.random.default_rng(0).normal(size=(90, 1)), units=1)
  return {
    'clients': classes()['clients'],
    'houses': prices['clients'],
    'make_regressor': prices['make_model'],
    'x_test': prices['x_test'],
    'prices': prices['y_test'],
  }


def split():
  return {'model': tiny.dense, 'clients': tiny.clients((20, 20, 20))}


def raw_data():
  frame = pd.DataFrame({'age': [20, 30, 40, 50], 'job': ['a', 'b', 'a', 'b']})
  return {
    'ids': np.array([3, 7, 3, 9]),
    'test_ids': np.array([9, 3]),
    'x': np.zeros((4, 2)),
    'partition': safl_tf.partition.iid(2),
    'df': frame.assign(bought=[1, 0, 1, 0], branch=['n', 'n', 's', 's']),
  }


def rule():
  return {'my_mix': safl_tf.mix.keep()}


def swept():
  names = classes()
  return {**names, 'my_keras_model_fn': names['make_model']}


# What the code of a page takes for granted; `classes` by default.
GIVEN = {
  'how_to/evaluate_clients.md': split,
  'how_to/own_data.md': raw_data,
  'how_to/own_model.md': models,
  'how_to/resume.md': rule,
  'how_to/sweep.md': swept,
}


@pytest.fixture(autouse=True)
def quick(monkeypatch, tmp_path, no_outputs):
  """Short runs without XLA, progress bars and plots, in an empty folder."""
  compiled = {'jit_compile': 'false'}
  train = functools.partial(safl_tf.train, **compiled, rounds=2, progress=False)
  sweep = safl_tf.sweep
  process = functools.partial(safl_tf.FederatedProcess, **compiled)
  monkeypatch.setattr(safl_tf, 'train', train)
  monkeypatch.setattr(
    safl_tf, 'sweep', lambda *a, seeds, **k: sweep(*a, seeds=seeds[:1], **k)
  )
  monkeypatch.setattr(safl_tf, 'FederatedProcess', process)
  monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize('name', PAGES)
def test_the_code_runs(name):
  pages.run(name, {**LIBRARIES, **GIVEN.get(name, classes)()})


def test_start_reaches_its_accuracy(capsys):
  names = pages.run('start.md', {})
  [text] = re.findall(r'test_accuracy=([0-9.]+),', pages.text('start.md'))
  accuracy = names['result'].history[-1]['test_accuracy']
  assert accuracy == pytest.approx(float(text), abs=0.03)
  assert 'Result(safl, rounds=20, test_accuracy=' in capsys.readouterr().out


@pytest.mark.parametrize(
  ('name', 'module', 'functions'),
  [
    ('how_to/deploy.md', real_clients, ('train', 'run_client')),
    ('how_to/scale_out.md', safl_tf, ('train',)),
  ],
)
def test_calls_fit_their_signatures(monkeypatch, name, module, functions):
  """The code needs other machines: only its arguments are checked."""
  monkeypatch.undo()
  for function in functions:
    checked = mock.create_autospec(getattr(module, function))
    monkeypatch.setattr(module, function, checked)
  monkeypatch.setitem(sys.modules, 'my_project', mock.Mock())
  x, y = tiny.blobs(12)
  given = {'x': x, 'y': y, 'x_test': x, 'y_test': y}
  pages.run(name, {**LIBRARIES, **given, 'model_fn': None, 'clients': None})
  assert all(getattr(module, function).called for function in functions)


def test_an_export_is_read():
  given = classes()
  result = safl_tf.train(given['make_model'], given['clients'], rounds=1)
  export.export(
    result.model,
    'export',
    result.process.model.input_spec,
    activation=None,
    metadata={'class_names': ['a', 'b', 'c']},
  )
  names = {**LIBRARIES, 'images': given['x_test'][:4]}
  pages.run('how_to/export_and_serve.md', names)
  assert set(names['names'].numpy()) <= {b'a', b'b', b'c'}
  np.testing.assert_allclose(
    names['probabilities'], result.model(names['images']), rtol=1e-5
  )
