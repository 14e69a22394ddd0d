import pytest

from safl_tf import devices, errors


def test_cpu():
  assert devices.find('cpu').endswith('device:CPU:0')
  assert devices.find('cpu:0') == devices.find('CPU') == devices.find('cpu')


def test_auto_is_a_gpu_if_there_is_one(monkeypatch):
  class Device:
    def __init__(self, kind, number):
      self.name = f'/device:{kind}:{number}'

  there = {'CPU': [Device('CPU', 0)], 'GPU': []}
  monkeypatch.setattr(
    devices.tf.config, 'list_logical_devices', lambda kind: there[kind]
  )
  assert devices.find() == '/device:CPU:0'
  there['GPU'] = [Device('GPU', 0), Device('GPU', 1)]
  assert devices.find() == devices.find('gpu') == '/device:GPU:0'
  assert devices.find('gpu:1') == '/device:GPU:1'
  assert devices.find('cpu') == '/device:CPU:0'
  with pytest.raises(errors.InputError, match=r'has cpu:0, gpu:0, gpu:1$'):
    devices.find('gpu:2')


@pytest.mark.parametrize('name', ['gpu:97', 'tpu', ''])
def test_not_there(name):
  with pytest.raises(errors.InputError, match=f'^device={name}: not on this'):
    devices.find(name)
