import dataclasses

import numpy as np
import pytest

import safl_tf
from safl_tf.core import client_trainer
from safl_tf.rules import aggregate
from safl_tf.util import errors
from tests import tiny, tiny_rounds


def test_nobody_uploads():
  trainer = tiny_rounds.make(
    safl_tf.build_extended_safl(nu=1e-9), clients=tiny.clients((20, 13, 31))
  )
  states, metrics = tiny_rounds.run(trainer, 2)
  assert metrics[0].sent.all()  # before there is a global model all do
  assert (metrics[1].delta > 0).all() and not metrics[1].sent.any()
  assert states[2].z_bar.tobytes() == states[1].z_bar.tobytes()
  for k in range(3):  # they trained all the same
    assert not np.array_equal(
      states[2].client_models[k], states[1].client_models[k]
    )
  assert metrics[1].bytes_up == 0 and metrics[1].bytes_down > 0


def test_some_upload():
  trainer = tiny_rounds.make(safl_tf.build_extended_safl(nu=0.2))
  states, metrics = tiny_rounds.run(trainer, 6)
  sent = np.array([m.sent for m in metrics])
  assert sent[0].all() and not sent[1:].all() and sent[1:].any()
  for before, state, m in zip(states[:-1], states[1:], metrics, strict=True):
    np.testing.assert_allclose(m.q, np.exp(-m.delta / 0.2), rtol=1e-5)
    chosen = m.ids[m.sent]
    expected = before.z_bar
    if len(chosen):
      expected = aggregate.weighted_mean(
        np.array(tiny_rounds.SIZES)[chosen],
        [state.client_models[k] for k in chosen],
      )
    assert state.z_bar.tobytes() == expected.tobytes()
    assert m.bytes_up == len(chosen) * 63 * 4


def test_extended_safl_with_a_large_nu_is_safl():
  one = tiny_rounds.make(safl_tf.build_extended_safl(nu=1e12, temperature=5))
  other = tiny_rounds.make(safl_tf.build_safl(temperature=5))
  tiny_rounds.check_same(
    tiny_rounds.run(one, 4)[0][-1], tiny_rounds.run(other, 4)[0][-1]
  )


def test_h_on_examples_that_are_held_out(monkeypatch):
  tasks = {}
  task = client_trainer.ClientTrainer._client_input

  def noted(self, seed, t, k, *models):
    tasks[t, k] = task(self, seed, t, k, *models)
    return tasks[t, k]

  monkeypatch.setattr(client_trainer.ClientTrainer, '_client_input', noted)
  clients = tiny.clients((20, 13, 31))
  config = dataclasses.replace(tiny_rounds.CONFIG, holdout=0.3)
  extended = safl_tf.build_extended_safl()
  trainer = tiny_rounds.make(extended, clients=clients, config=config)
  states, metrics = tiny_rounds.run(trainer, 2)
  for k, held_out in enumerate((6, 4, 9)):
    plans = [tasks[t, k] for t in (1, 2)]
    seen = [set(p.plan.examples[: p.plan.num_steps].ravel()) for p in plans]
    rows = np.unique(plans[0].measured.examples[: held_out // 8 + 1])
    assert len(rows) == held_out and seen[0] == seen[1]
    assert sorted([*seen[0], *rows]) == sorted(clients.indices(k))

    def h(z, rows=rows):
      outputs = trainer.model.to_model(z)(clients.x[rows]).numpy()
      return np.mean(outputs.argmax(axis=1) == clients.y[rows])

    mine, theirs = h(states[2].client_models[k]), h(states[1].z_bar)
    expected = abs(theirs - mine) / (theirs + mine + 1e-6)
    assert metrics[1].delta[k] == pytest.approx(expected, abs=1e-6)


def test_nothing_is_held_out_if_nobody_asks_for_h():
  config = dataclasses.replace(tiny_rounds.CONFIG, holdout=0.3)
  with pytest.raises(errors.InputError, match=r'^holdout=0.3: has no effect'):
    tiny_rounds.make(safl_tf.build_safl(), config=config)
