import pytest

from safl_tf import devices, errors


def test_cpu():
  [name] = devices.find('cpu')
  assert name.endswith('device:CPU:0')
  assert devices.find('cpu:0') == devices.find('CPU') == (name,)


def test_auto_is_all_gpus_if_there_are_any(monkeypatch):
  class Device:
    def __init__(self, kind, number):
      self.name = f'/device:{kind}:{number}'

  there = {'CPU': [Device('CPU', 0)], 'GPU': []}
  monkeypatch.setattr(
    devices.tf.config, 'list_logical_devices', lambda kind: there[kind]
  )
  assert devices.find() == ('/device:CPU:0',)
  with pytest.raises(errors.InputError, match=r'it has cpu, cpu:0$'):
    devices.find('gpu')
  there['GPU'] = [Device('GPU', 0), Device('GPU', 1)]
  both = ('/device:GPU:0', '/device:GPU:1')
  assert devices.find() == devices.find('gpu') == both
  assert devices.find('gpu:1') == ('/device:GPU:1',)
  assert devices.find('cpu') == ('/device:CPU:0',)
  with pytest.raises(
    errors.InputError, match=r'it has cpu, cpu:0, gpu, gpu:0, gpu:1$'
  ):
    devices.find('gpu:2')


@pytest.mark.parametrize('name', ['gpu:97', 'tpu', ''])
def test_not_there(name):
  with pytest.raises(errors.InputError, match=f'^device={name}: not on this'):
    devices.find(name)
