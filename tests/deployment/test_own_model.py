"""What a client has at the end: its own model, as a Keras file."""

import keras
import numpy as np
import pytest

from safl_tf.algorithms import registry
from safl_tf.deployment import client as client_lib
from safl_tf.deployment import client_state
from tests import tiny_rounds
from tests.deployment import loopback


@pytest.mark.parametrize('name, keeps', [('safl', True), ('fedsgd', False)])
def test_own_model(tmp_path, name, keeps):
  federation = loopback.Federation(
    tmp_path, algorithm=registry.build(name), config=tiny_rounds.ONE_STEP
  )
  process = federation.process()
  state = process.initialize(0)
  for _ in range(2):
    state, _ = process.next(state)
  assert not list(tmp_path.rglob(client_lib.OWN_MODEL))
  federation.server.finish(seconds=1)
  paths = list(tmp_path.rglob(client_lib.OWN_MODEL))
  assert len(paths) == (federation.clients.num_clients if keeps else 0)
  for path in paths:
    _, saved = client_state.read(path.with_name('client_state.bin'))
    weights = keras.models.load_model(path).get_weights()
    own = np.concatenate([w.ravel() for w in weights])
    np.testing.assert_array_equal(own, saved.after['z'])
    assert {p.name for p in path.parent.iterdir()} == {
      'client_state.bin',
      client_lib.OWN_MODEL,
    }
