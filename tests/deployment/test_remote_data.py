"""The clients of a run as the server knows them: everything but examples."""

import numpy as np
import pytest

from safl_tf.data import arrays, client_data, client_file
from safl_tf.deployment import record, remote_data
from tests import tasks, tiny


def recorded(clients, task='classification'):
  """The record of a run of these clients."""
  facts = client_file.Facts.of('x', task, clients, clients.num_classes, {})
  found = [
    record.Client(name, int(size), '')
    for name, size in zip(clients.client_ids, clients.sizes, strict=True)
  ]
  return record.Record('', facts, found)


def rows(array):
  return array.shape[1:], array.dtype


def check_alike(remote, clients):
  assert arrays.map_leaves(rows, remote.x) == arrays.map_leaves(rows, clients.x)
  assert type(remote.x) is type(clients.x)
  assert rows(remote.y) == rows(clients.y)
  assert (remote.sample_weight is None) == (clients.sample_weight is None)
  assert remote.num_classes == clients.num_classes
  assert remote.class_names == clients.class_names
  assert remote.client_ids == clients.client_ids
  assert remote.sizes.tolist() == clients.sizes.tolist()
  assert not remote.has_examples and clients.has_examples
  leaves = [leaf for _, leaf in arrays.named_leaves(remote.x)]
  assert all(len(leaf) == 1 and not leaf.any() for leaf in [remote.y, *leaves])


@pytest.mark.parametrize('name', [n for n in tasks.TASKS if n != 'text'])
def test_tasks(name):
  clients = tasks.data(name)
  check_alike(remote_data.create(recorded(clients, 'regression')), clients)


@pytest.mark.parametrize('name', ['tuple of inputs', 'dict of inputs'])
def test_several_inputs(name):
  x, y = tiny.blobs(20)
  clients = tiny.clients((15, 5), tiny.MODELS[name][1](x), y)
  check_alike(remote_data.create(recorded(clients)), clients)


def test_names():
  x, y = tiny.blobs(20)
  clients = client_data.ClientData.from_arrays(
    x,
    np.array(['cat', 'dog', 'eel'])[y],
    [np.arange(15), np.arange(15, 20)],
    ['Ada', 'Bo'],
  )
  remote = remote_data.create(recorded(clients))
  check_alike(remote, clients)
  assert remote.client_ids == ['Ada', 'Bo']
  assert remote.class_names == ['cat', 'dog', 'eel']


def test_text():
  clients = tasks.data('text')
  remote = remote_data.create(recorded(clients))
  assert remote.x.dtype.kind == 'S'
  assert remote.sizes.tolist() == clients.sizes.tolist()
