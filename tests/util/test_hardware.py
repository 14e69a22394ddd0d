import os
import subprocess
import sys

import pytest
import tensorflow as tf

from safl_tf.util import errors, hardware
from tests import marks


def test_num_cores():
  assert hardware.num_cores() >= 1


def test_cpu():
  [name] = hardware.find('cpu')
  assert name.endswith('device:CPU:0')
  assert hardware.find('cpu:0') == hardware.find('CPU') == (name,)


def test_auto_prefers_all_gpus(monkeypatch):
  class Device:
    def __init__(self, kind, number):
      self.name = f'/device:{kind}:{number}'

  devices = {'CPU': [Device('CPU', 0)], 'GPU': []}
  monkeypatch.setattr(
    tf.config, 'list_logical_devices', lambda kind: devices[kind]
  )
  assert hardware.find() == ('/device:CPU:0',)
  with pytest.raises(errors.InputError, match=r'it has cpu, cpu:0$'):
    hardware.find('gpu')
  devices['GPU'] = [Device('GPU', 0), Device('GPU', 1)]
  both = ('/device:GPU:0', '/device:GPU:1')
  assert hardware.find() == hardware.find('gpu') == both
  assert hardware.find('gpu:1') == ('/device:GPU:1',)
  assert hardware.find('cpu') == ('/device:CPU:0',)
  with pytest.raises(
    errors.InputError, match=r'it has cpu, cpu:0, gpu, gpu:0, gpu:1$'
  ):
    hardware.find('gpu:2')


@pytest.mark.parametrize('name', ['gpu:97', 'tpu', ''])
def test_unknown_device(name):
  with pytest.raises(errors.InputError, match=f'^device={name}: '):
    hardware.find(name)


def test_memory_growth_is_set_on_every_gpu(monkeypatch):
  gpus, growing = ['gpu 0', 'gpu 1'], []
  config = tf.config
  monkeypatch.setattr(
    config, 'list_physical_devices', lambda kind: gpus if kind == 'GPU' else []
  )
  monkeypatch.setattr(
    config.experimental,
    'set_memory_growth',
    lambda gpu, grow: growing.append((gpu, grow)),
  )
  hardware.find('cpu')
  assert growing == [('gpu 0', True), ('gpu 1', True)]


def test_memory_growth_after_initialisation_is_ignored(monkeypatch):
  def refuse(gpu, grow):
    raise RuntimeError('Physical devices cannot be modified')

  config = tf.config
  monkeypatch.setattr(config, 'list_physical_devices', lambda kind: ['gpu 0'])
  monkeypatch.setattr(config.experimental, 'set_memory_growth', refuse)
  hardware.find('cpu')


@pytest.mark.parametrize('on', marks.some([True, False], [False]))
def test_onednn_is_found(on):
  """TensorFlow reads its variable once, when it starts."""
  program = 'from safl_tf.util import hardware; print(hardware.uses_onednn())'
  done = subprocess.run(
    [sys.executable, '-c', program],
    env={**os.environ, 'TF_ENABLE_ONEDNN_OPTS': str(int(on))},
    capture_output=True,
    text=True,
    check=True,
  )
  assert done.stdout.strip() == str(on)
