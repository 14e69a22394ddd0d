"""FedDyn."""

import dataclasses

import numpy as np
import pytest

import safl_tf
from examples import client_drift as quadratic
from safl_tf.algorithms import registry
from safl_tf.rules import gate
from safl_tf.util import errors
from tests import papers, tiny, tiny_rounds
from tests.algorithms import test_scaffold as common

A = 0.25


@common.PAPER
def test_rounds_of_the_paper(executor, reduction):
  """Algorithm 1, with three of four clients in a round, of unequal sizes."""
  trainer = common.make(
    safl_tf.build_fed_dyn(feddyn_alpha=A, clients_per_round=3),
    reduction=reduction,
    executor=executor,
  )
  states, metrics = tiny_rounds.run(trainer, 3, seed=1)
  expected = papers.start(states[0].z_bar, 4)
  for t, state in enumerate(states[1:], 1):
    ids = metrics[t - 1].ids
    expected = papers.fed_dyn(trainer, 1, t, ids, expected, A)
    np.testing.assert_allclose(state.z_bar, expected.x, **common.CLOSE)
    np.testing.assert_allclose(
      state.memory['h'], expected.extra, **common.CLOSE
    )
    slopes = common.own(state, 'slope')
    np.testing.assert_allclose(slopes, expected.own, **common.CLOSE)
    # Float32 rounding of slopes: h is their mean.
    np.testing.assert_allclose(
      state.memory['h'], slopes.mean(axis=0), atol=1e-6
    )
  assert np.abs(expected.extra).max() > 0.01
  assert len({tuple(m.ids) for m in metrics}) > 1


def test_slopes_are_gradients_after_exact_solutions():
  """λ_k = ∇F_k(z_k) if a client minimises its problem; float64 throughout.

  With 200 steps of 1/8 and curvatures F_k'' + a above 1.25, (1 - 1.25/8)^200 of
  the initial error is left.
  """
  trainer = quadratic.make_process(
    safl_tf.build_fed_dyn(feddyn_alpha=1.0),
    local_epochs=100,
    learning_rate=0.125,
  )
  _, state = quadratic.global_models(trainer, 2)
  for k in range(quadratic.N):
    z = state.client_models[k]
    gradient = quadratic.curvatures()[k] @ (z - quadratic.centres()[k])
    np.testing.assert_allclose(state.clients['slope'][k], gradient, atol=1e-12)


def test_moving_statistics_are_averaged():
  trainer = common.make(safl_tf.build_fed_dyn(A), model=tiny.normalised)
  states, _ = tiny_rounds.run(trainer, 3)
  common.check_moving_statistics(trainer, states[-1])
  trained = slice(trainer.model.layout.trainable_size)
  mean = common.own(states[-1], 'z').mean(axis=0)[trained]
  assert np.abs(states[-1].z_bar[trained] - mean).max() > 0.01  # h/a


def test_a_shared_start():
  trainer = common.make(safl_tf.build_fed_dyn())
  assert trainer.init == 'shared'
  state = trainer.initialize(0)
  assert state.z_bar.tobytes() == state.client_models[3].tobytes()
  with pytest.raises(errors.InputError, match=r'^init=per_client: .*shared'):
    common.make(safl_tf.build_fed_dyn(), init='per_client')


def test_what_makes_no_sense_is_refused():
  with pytest.raises(errors.InputError, match=r'^gate=.*so all upload'):
    dataclasses.replace(registry.build('feddyn'), gate=gate.accuracy_gap())
  with pytest.raises(errors.InputError, match=r'^feddyn_alpha=0: '):
    registry.build('feddyn', feddyn_alpha=0)
  with pytest.raises(errors.InputError, match=r'^feddyn_alpha=1: has no eff'):
    registry.build('scaffold', feddyn_alpha=1)
