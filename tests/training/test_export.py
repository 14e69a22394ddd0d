"""Exports of tiny models, checked in this process."""

import copy
import json
import os
import random
import subprocess

import keras
import numpy as np
import pytest
import tensorflow as tf

from safl_tf.training import export, export_files, export_formats
from safl_tf.util import errors
from tests import tiny
from tests.binaries import programs

SPEC = {'shape': [tiny.FEATURES], 'dtype': 'float32'}
CLASSES = ['ant', 'bee', 'Grüße']
X, _ = tiny.blobs(6)


def write(folder, model, spec=SPEC, activation='softmax', **options):
  options = {'formats': 'all', 'metadata': {'class_names': CLASSES}} | options
  return export.export(model, folder, spec, activation, **options)


def signature(folder, name='serving_default'):
  loaded = tf.saved_model.load(str(folder / 'saved_model' / '1'))
  serve = loaded.signatures[name]
  serve.owner = loaded  # keeps the variables
  return serve


def interpreter(folder):
  with pytest.warns(UserWarning, match='LiteRT'):
    return tf.lite.Interpreter(str(folder / 'model.tflite'))


@pytest.fixture(scope='module')
def exported(tmp_path_factory):
  """A model, and the folder that it was exported to."""
  folder, model = tmp_path_factory.mktemp('export'), tiny.dense()
  paths = write(folder, model)
  names = ['saved_model', 'model.keras', 'model.tflite']
  assert paths == [folder / name for name in names]
  return folder, model


def test_files(exported):
  folder, _ = exported
  names = ['.safl_tf', 'export.json', 'model.keras', 'model.tflite']
  assert sorted(os.listdir(folder)) == [*names, 'saved_model']
  assert os.listdir(folder / 'saved_model') == ['1']
  assert json.loads((folder / 'export.json').read_text())['outputs'] == {
    'saved_model': 'probabilities',
    'model.keras': 'logits',
    'model.tflite': 'probabilities',
  }


def test_saved_model(exported):
  folder, model = exported
  serve = signature(folder)
  assert list(serve.structured_input_signature[1]) == ['inputs']
  for size in (1, 5):
    outputs = serve(inputs=tf.constant(X[:size]))
    assert list(outputs) == ['probabilities']
    np.testing.assert_allclose(
      outputs['probabilities'], tf.nn.softmax(model(X[:size])), atol=1e-6
    )


def test_class_names_in_the_saved_model(exported):
  classes = signature(exported[0], 'classes')
  names = classes(indices=tf.constant([2, 0]))['class_names'].numpy()
  assert [name.decode() for name in names] == ['Grüße', 'ant']
  with pytest.raises(tf.errors.InvalidArgumentError):
    classes(indices=tf.constant([3]))


def test_tflite_with_any_batch_size(exported):
  folder, model = exported
  runner = interpreter(folder).get_signature_runner()
  for size in (1, 5, 2):
    outputs = runner(inputs=X[:size])['probabilities']
    wanted = tf.nn.softmax(model(X[:size]))
    np.testing.assert_allclose(outputs, wanted, atol=1e-6)
  lite = interpreter(folder)
  [place], [result] = lite.get_input_details(), lite.get_output_details()
  for size in (4, 1):
    lite.resize_tensor_input(place['index'], [size, tiny.FEATURES])
    lite.allocate_tensors()
    lite.set_tensor(place['index'], X[:size])
    lite.invoke()
    outputs = lite.get_tensor(result['index'])
    wanted = tf.nn.softmax(model(X[:size]))
    np.testing.assert_allclose(outputs, wanted, atol=1e-6)


@pytest.mark.parametrize(
  ('activation', 'classes', 'output', 'of_model', 'function'),
  [
    ('sigmoid', None, 'probabilities', 'logits', tf.nn.sigmoid),
    (None, CLASSES, 'probabilities', 'probabilities', tf.identity),
    (None, None, 'outputs', 'outputs', tf.identity),
  ],
)
def test_outputs(tmp_path, activation, classes, output, of_model, function):
  model, metadata = tiny.dense(), {'class_names': classes}
  write(tmp_path, model, activation=activation, metadata=metadata)
  about = export_files.read(tmp_path)
  assert about['outputs'] == {
    'saved_model': output,
    'model.keras': of_model,
    'model.tflite': output,
  }
  outputs = signature(tmp_path)(inputs=tf.constant(X))
  assert list(outputs) == [output]
  np.testing.assert_allclose(outputs[output], function(model(X)), atol=1e-6)
  runner = interpreter(tmp_path).get_signature_runner()
  lite = runner(inputs=X)[output]
  np.testing.assert_allclose(lite, outputs[output], rtol=1e-5, atol=1e-6)


def two_inputs(structure):
  parts = [keras.Input((2,), name='b'), keras.Input((6,), name='a key')]
  outputs = keras.layers.Dense(3)(keras.layers.Concatenate()(parts))
  return keras.Model(structure(parts), outputs)


@pytest.mark.parametrize(
  ('structure', 'names'),
  [
    (lambda xs: {'b': xs[0], 'a key': xs[1]}, ['b', 'a_key']),
    (list, ['inputs_0', 'inputs_1']),
  ],
)
def test_several_inputs(tmp_path, structure, names):
  model = two_inputs(structure)
  spec = structure(
    [{'shape': [2], 'dtype': 'float32'}, {'shape': [6], 'dtype': 'float32'}]
  )
  write(tmp_path, model, spec)
  parts = [X[:, :2], X[:, 2:]]
  wanted = tf.nn.softmax(model(structure(parts)))
  inputs = dict(zip(names, parts, strict=True))
  tensors = {name: tf.constant(part) for name, part in inputs.items()}
  outputs = signature(tmp_path)(**tensors)['probabilities']
  np.testing.assert_allclose(outputs, wanted, atol=1e-6)
  outputs = interpreter(tmp_path).get_signature_runner()(**inputs)
  np.testing.assert_allclose(outputs['probabilities'], wanted, atol=1e-6)


@pytest.fixture(scope='module')
def text():
  """A model that takes strings."""
  words = keras.layers.TextVectorization(20, output_sequence_length=4)
  words.adapt(['1 2 3', '400 500'])
  return keras.Sequential(
    [
      keras.Input((), dtype='string'),
      words,
      keras.layers.Embedding(20, 3),
      keras.layers.GlobalAveragePooling1D(),
      keras.layers.Dense(3),
    ]
  )


def test_text(text, tmp_path, capfd):
  spec = {'shape': [], 'dtype': 'string'}
  write(tmp_path, text, spec, formats='both')
  lines = tf.constant(['1 3', 'x', '500'])
  outputs = signature(tmp_path)(inputs=lines)['probabilities']
  np.testing.assert_allclose(outputs, tf.nn.softmax(text(lines)), atol=1e-6)
  before = sorted(os.listdir(tmp_path))
  with pytest.raises(errors.RunError) as caught:
    write(tmp_path, text, spec, formats='tflite')
  assert str(caught.value) == (
    'tflite: the model needs operations of TensorFlow that LiteRT does not '
    'have (RaggedTensorToTensor, StaticRegexReplace, StringLower, '
    'StringSplitV2); export it as savedmodel or keras'
  )
  assert sorted(os.listdir(tmp_path)) == before
  assert capfd.readouterr().err == ''


def recurrent():
  layers = [keras.Input((5, 2)), keras.layers.GRU(3)]
  return keras.Sequential(layers), {'shape': [5, 2], 'dtype': 'float32'}


def half():
  keras.config.set_dtype_policy('mixed_bfloat16')
  try:
    return tiny.dense(), SPEC
  finally:
    keras.config.set_dtype_policy('float32')


def log_gamma():
  layer = keras.layers.Lambda(lambda x: tf.math.lgamma(tf.abs(x) + 1))
  return keras.Sequential([keras.Input((8,)), layer]), SPEC


@pytest.mark.parametrize(
  ('make', 'message'),
  [
    (recurrent, r'^tflite: the model needs operations .*\(TensorListReserve\)'),
    (half, '^tflite: LiteRT has no operations in half precision; export it as'),
    (log_gamma, r'model\.tflite: predictions have shape \[0, 8\], not \[1, 8'),
  ],
)
def test_models_that_litert_cannot_run(tmp_path, capfd, make, message):
  """The converter itself accepts some of them."""
  with pytest.raises(export.ExportError, match=message) as caught:
    write(tmp_path, *make(), formats='tflite')
  assert '\n' not in str(caught.value)
  assert os.listdir(tmp_path) == ['.safl_tf']
  assert capfd.readouterr().err == ''


def shifted(model):
  """The model with other weights."""
  other = keras.models.clone_model(model)
  other.set_weights([1.1 * w for w in model.get_weights()])
  return other


def other_weights(serving):
  serving.model = shifted(serving.model)


def other_classes(serving):
  serving.class_names = CLASSES[::-1]


@pytest.mark.parametrize(
  ('name', 'formats', 'change', 'problem'),
  [
    pytest.param(
      'saved_model',
      'savedmodel',
      other_weights,
      'predictions differ by ',
      marks=pytest.mark.slow,
    ),
    ('saved_model', 'savedmodel', other_classes, 'class names differ'),
    ('model.keras', 'keras', other_weights, 'predictions differ by '),
    ('model.tflite', 'tflite', other_weights, 'predictions differ by '),
  ],
)
def test_wrong_files(tmp_path, monkeypatch, name, formats, change, problem):
  """What was written is loaded, and an earlier export stays."""
  model = tiny.dense()
  write(tmp_path, model, formats=formats)
  before = programs.snapshot(tmp_path)
  written = export_formats.write

  def write_another(serving, *args):
    other = copy.copy(serving)
    change(other)
    written(other, *args)

  monkeypatch.setattr(export_formats, 'write', write_another)
  with pytest.raises(export.ExportError) as caught:
    write(tmp_path, model, formats=formats)
  start = f'the exported model was not verified: {name}: {problem}'
  assert str(caught.value).startswith(start)
  assert programs.snapshot(tmp_path) == before


def test_a_file_that_cannot_be_loaded(tmp_path, monkeypatch):
  monkeypatch.setattr(
    export_formats,
    'write',
    lambda serving, folder, names: (folder / 'model.keras').write_text('x'),
  )
  with pytest.raises(export.ExportError, match=r'not verified: .*keras'):
    write(tmp_path, tiny.dense(), formats='keras')


def test_leaves_nothing_behind(tmp_path, monkeypatch):
  """No process is started, and later draws of random numbers are the same."""
  model = tiny.normalised()
  monkeypatch.setattr(subprocess, 'run', lambda *args, **_: pytest.fail())
  states = random.getstate(), np.random.get_state()[1].tolist()
  policy, weights = keras.config.dtype_policy(), model.get_weights()
  write(tmp_path, model, formats='both')
  assert (random.getstate(), np.random.get_state()[1].tolist()) == states
  assert keras.config.dtype_policy() == policy
  for before, after in zip(weights, model.get_weights(), strict=True):
    np.testing.assert_array_equal(before, after)


def test_an_export_of_the_earlier_layout_is_replaced(tmp_path):
  """It has no versions; safl_tf wrote it, so it may be replaced."""
  (tmp_path / '.safl_tf').write_text('export\n')
  old = tmp_path / 'saved_model'
  old.mkdir()
  (old / 'saved_model.pb').write_text('old')
  files = {'saved_model': export_files.digest(old)}
  (tmp_path / 'export.json').write_text(json.dumps({'files': files}))
  write(tmp_path, tiny.dense(), formats='savedmodel', replace_current=False)
  assert os.listdir(old) == ['1']


def test_versions_of_others_stay(tmp_path):
  write(tmp_path, tiny.dense(), formats='savedmodel')
  (tmp_path / 'saved_model' / '2').mkdir()
  with pytest.raises(errors.RunError, match='saved_model: was changed or is '):
    write(tmp_path, tiny.dense(), formats='savedmodel')
  assert sorted(os.listdir(tmp_path / 'saved_model')) == ['1', '2']
