"""Damage to what rebuilds the model of a run."""

import json
import logging

import keras
import numpy as np
import pytest

import safl_tf
from safl_tf.training import run_directory
from safl_tf.util import errors
from tests import tiny, tiny_rounds

pytestmark = pytest.mark.usefixtures('no_outputs')

NAME = 'fixed_weights.npz'


def half_frozen():
  model = tiny.dense()
  model.layers[0].trainable = False
  return model


def train(folder, rounds=1):
  return tiny_rounds.train(half_frozen, folder, rounds)


def flip(folder):
  data = bytearray((folder / NAME).read_bytes())
  data[len(data) // 2] ^= 1
  (folder / NAME).write_bytes(data)


def cut(folder):
  (folder / NAME).write_bytes((folder / NAME).read_bytes()[:-7])


def change_json(change):
  def damage(folder):
    path = folder / 'model.json'
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))

  return damage


# the damage -> the errors of `load`; `train` warns of it and writes again
DAMAGE = {
  'missing': (lambda folder: (folder / NAME).unlink(), f'{NAME} is missing'),
  'a bit': (flip, f'{NAME} does not match its SHA-256'),
  'cut': (cut, f'{NAME} has .* bytes instead of'),
  'no field': (
    change_json(lambda content: content['fixed'].pop('arrays')),
    'model.json has no valid field fixed',
  ),
  'a list': (
    change_json(lambda content: content.update(fixed=[])),
    'model.json has no valid field fixed',
  ),
}


@pytest.mark.parametrize('damage, message', DAMAGE.values(), ids=DAMAGE)
def test_damaged_files(tmp_path, caplog, damage, message):
  first = train(tmp_path)
  before = (tmp_path / NAME).read_bytes()
  damage(tmp_path)
  with pytest.raises(errors.InputError, match=message):
    run_directory.load(tmp_path)
  with caplog.at_level(logging.WARNING, logger='absl'):
    train(tmp_path)
  assert 'it is written again' in caplog.text
  assert (tmp_path / NAME).read_bytes() == before
  x, _ = tiny.blobs()
  loaded = run_directory.load(tmp_path).model
  np.testing.assert_array_equal(loaded(x), first.model(x))


def test_a_model_without_its_fixed_weights(tmp_path):
  train(tmp_path)
  change_json(lambda content: content.pop('fixed'))(tmp_path)
  with pytest.raises(errors.InputError, match='does not describe the model'):
    run_directory.load(tmp_path)


def test_nothing_is_written_twice_a_run(tmp_path):
  """Checkpoints have what travels, the file beside model.json the rest."""
  train(tmp_path, rounds=2)
  head = 5 * 3 + 3
  for path in (tmp_path / 'checkpoints').glob('*.npz'):
    with np.load(path) as arrays:
      assert arrays['z_bar'].shape == (head,)
      assert arrays['clients/z/arrays'].shape[1] == head
  with np.load(tmp_path / NAME) as arrays:
    assert {name: a.shape for name, a in arrays.items()} == {
      '0': (8, 5),
      '1': (5,),
    }


def test_half_precision_is_stored(tmp_path):
  def make():
    half = keras.layers.Dense(4, dtype='bfloat16', trainable=False)
    return keras.Sequential(
      [keras.Input((8,)), half, keras.layers.Dense(3, dtype='float32')]
    )

  result = safl_tf.train(
    make,
    tiny_rounds.CLIENTS,
    rounds=1,
    config=tiny_rounds.CONFIG,
    output_dir=tmp_path,
    progress=False,
    jit_compile='false',
  )
  x, _ = tiny.blobs()
  loaded = run_directory.load(tmp_path).model
  assert result.process.model.fixed[0].dtype.name == 'bfloat16'
  np.testing.assert_array_equal(loaded(x), result.model(x))
