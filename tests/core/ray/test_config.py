"""Where workers run, without Ray."""

import importlib.util
import os
import pathlib
import tempfile

import pytest

import safl_tf
from safl_tf.core.executors.ray import config as config_lib
from safl_tf.core.executors.ray import temp_folder
from safl_tf.util import errors
from tests import tiny_rounds


def node(name, cpus, gpus=0):
  return config_lib.Node(name, name, f'{name}:1', cpus, gpus)


HEAD = node('head', 0)
CPUS = [HEAD, node('a', 8), node('b', 4)]
GPUS = [HEAD, node('a', 8, 2), node('b', 4, 1), node('c', 16)]


def slots(nodes, used=(), **options):
  """The places of workers as (node, CPUs, GPUs)."""
  config = safl_tf.RayConfig(**options)
  gpus = config_lib.gpus_per_worker(config, nodes, 'auto')
  planned = config_lib.plan(config, nodes, gpus, used)
  return [(slot.node.id, slot.cpus, slot.gpus) for slot in planned]


PLANS = {
  'one per node': (CPUS, {}, [('a', 8, 0), ('b', 4, 0)]),
  'one per GPU': (GPUS, {}, [('a', 4, 1), ('b', 4, 1), ('a', 4, 1)]),
  'CPUs although there are GPUs': (
    GPUS,
    {'gpus_per_worker': 0},
    [('a', 8, 0), ('b', 4, 0), ('c', 16, 0)],
  ),
  'shared GPUs': (
    GPUS,
    {'gpus_per_worker': 0.5, 'workers': 4},
    [('a', 2, 0.5), ('b', 2, 0.5), ('a', 2, 0.5), ('b', 2, 0.5)],
  ),
  'two GPUs each': (GPUS, {'gpus_per_worker': 2}, [('a', 8, 2)]),
  'fewer than nodes': (CPUS, {'workers': 1}, [('a', 8, 0)]),
  'more than nodes': (
    CPUS,
    {'workers': 4},
    [('a', 4, 0), ('b', 2, 0), ('a', 4, 0), ('b', 2, 0)],
  ),
  'CPUs per worker': (
    CPUS,
    {'cpus_per_worker': 3},
    [('a', 3, 0), ('b', 3, 0), ('a', 3, 0)],
  ),
  'CPUs per worker with GPUs': (
    GPUS,
    {'cpus_per_worker': 1},
    [('a', 1, 1), ('b', 1, 1), ('a', 1, 1)],
  ),
  'no room': (CPUS, {'cpus_per_worker': 9}, []),
}


@pytest.mark.parametrize('name', PLANS)
def test_plan(name):
  nodes, options, expected = PLANS[name]
  assert slots(nodes, **options) == expected


def test_missing_workers_are_planned():
  used = [config_lib.Slot(CPUS[1], 8, 0)]
  assert slots(CPUS, used) == [('b', 4, 0)]
  assert slots(CPUS, used, workers=1) == []
  used = [config_lib.Slot(CPUS[1], 4, 0)]
  assert slots(CPUS, used, workers=2) == [('b', 4, 0)]


REFUSED = {
  'address': ({'address': 'node7'}, '^ray_address=node7: must be local, auto'),
  'port': ({'address': 'node7:70000'}, '^ray_address=node7:70000: must be'),
  'workers': ({'workers': 0}, '^ray_workers=0: must be a whole number'),
  'CPUs': ({'cpus_per_worker': 1.5}, '^ray_cpus_per_worker=1.5: must be'),
  'GPUs': ({'gpus_per_worker': -1}, '^ray_gpus_per_worker=-1: must be'),
  'chunk': ({'chunk': 0}, '^ray_chunk=0: must be a whole number'),
  'timeout': ({'timeout': 0}, '^ray_timeout=0: must be a number'),
}


@pytest.mark.parametrize('name', REFUSED)
def test_values(name):
  options, message = REFUSED[name]
  with pytest.raises(errors.InputError, match=message):
    safl_tf.RayConfig(**options)


@pytest.mark.parametrize(
  'address', ['local', 'auto', '10.0.0.1:6379', 'head.lan:6379', '[::1]:6379']
)
def test_addresses(address):
  assert safl_tf.RayConfig(address).address == address


@pytest.mark.parametrize(
  ('options', 'device', 'message'),
  [
    ({}, 'gpu:1', '^device=gpu:1: must be auto, cpu or gpu with'),
    ({}, 'gpu', '^device=gpu: the Ray cluster has no GPU'),
    ({'gpus_per_worker': 1}, 'cpu', '^ray_gpus_per_worker=1: has no effect'),
  ],
)
def test_devices(options, device, message):
  config = safl_tf.RayConfig(**options)
  with pytest.raises(errors.InputError, match=message):
    config_lib.gpus_per_worker(config, CPUS, device)


def test_room():
  config = safl_tf.RayConfig('h:1', cpus_per_worker=9)
  with pytest.raises(errors.InputError, match=r'^ray_address=h:1: no .* 9'):
    config_lib.check_room(config, [])


def test_without_ray(monkeypatch):
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name: None)
  message = r"^executor=ray: needs the package ray: pip install 'safl_tf\[ray\]"
  with pytest.raises(errors.InputError, match=message):
    tiny_rounds.make(executor='ray')


def test_folders_of_killed_processes_are_deleted(tmp_path, monkeypatch):
  monkeypatch.setattr(tempfile, 'tempdir', str(tmp_path))
  used, unused = temp_folder.TempFolder(), temp_folder.TempFolder()
  unused._lock.close()  # as when its process ends
  new = temp_folder.TempFolder()
  new._lock.close()
  (tmp_path / 'safl_ray_of_others').mkdir()
  for path in (used.path, unused.path, tmp_path / 'safl_ray_of_others'):
    os.utime(path, (0, 0))
  third = temp_folder.TempFolder()
  left = {used.path, new.path, third.path}
  names = {str(path) for path in tmp_path.iterdir()}
  assert names == left | {str(tmp_path / 'safl_ray_of_others')}
  third.close()
  assert not pathlib.Path(third.path).exists()


def test_only_executors():
  with pytest.raises(errors.InputError, match=r'^executor=3: must be one of'):
    tiny_rounds.make(executor=3)
