import keras
import numpy as np
import pytest

from safl_tf.core import flat_model, seeds
from safl_tf.training import evaluation
from tests import tiny


def outputs(total=50, classes=8, seed=0):
  rng = np.random.default_rng(seed)
  return rng.normal(size=(total, classes)).astype(np.float32)


def labels(total=50, classes=8, seed=1):
  return np.random.default_rng(seed).integers(0, classes, total)


def test_scores_equal_numpy():
  logits, y = outputs(), labels()
  scores = evaluation.score(logits, y)
  order = np.argsort(-logits, axis=1)
  first = order[:, 0] == y
  assert scores.accuracy == pytest.approx(first.mean())
  assert scores.top5_accuracy == pytest.approx(
    np.mean([y[i] in order[i, :5] for i in range(50)])
  )
  log_sums = np.log(np.exp(logits.astype(np.float64)).sum(axis=1))
  losses = log_sums - logits[np.arange(50), y]
  assert scores.loss == pytest.approx(losses.mean(), rel=1e-6)
  np.testing.assert_array_equal(
    scores.class_counts, np.bincount(y, minlength=8)
  )
  for c in range(8):
    assert scores.class_accuracy[c] == pytest.approx(first[y == c].mean())


def test_scores_equal_keras():
  logits, y = outputs(), labels()
  scores = evaluation.score(logits, y)
  for metric, value in (
    (keras.metrics.SparseCategoricalAccuracy(), scores.accuracy),
    (keras.metrics.SparseTopKCategoricalAccuracy(5), scores.top5_accuracy),
  ):
    metric.update_state(y, logits)
    assert float(metric.result()) == pytest.approx(value)


def test_equal_outputs_rank_the_lower_class_first():
  scores = evaluation.score(np.zeros((8, 8), np.float32), np.arange(8))
  assert scores.accuracy == 1 / 8
  assert scores.top5_accuracy == 5 / 8
  np.testing.assert_array_equal(scores.class_accuracy, [1, *[0] * 7])


def test_non_finite_outputs_are_wrong():
  logits = np.array([[5, 0, 0], [np.nan] * 3, [np.inf, 0, 0]], np.float32)
  scores = evaluation.score(logits, np.zeros(3, np.int64))
  assert scores.accuracy == scores.top5_accuracy == pytest.approx(1 / 3)


def test_class_without_examples():
  scores = evaluation.score(np.eye(3, dtype=np.float32), np.array([0, 1, 1]))
  np.testing.assert_array_equal(scores.class_counts, [1, 2, 0])
  np.testing.assert_array_equal(scores.class_accuracy, [1, 0.5, np.nan])


def test_fewer_than_five_classes():
  scores = evaluation.score(outputs(20, 3), labels(20, 3))
  assert scores.top5_accuracy == 1


def test_other_losses():
  y = np.array([1, 2])
  y_hat = np.full((2, 10), 0.1, np.float32)
  assert evaluation.score(y_hat, y, from_logits=False).loss == pytest.approx(
    2.3026, abs=5e-5
  )
  assert evaluation.score(y_hat, y, 'paper', False).loss == pytest.approx(
    3.2508, abs=5e-5
  )


@pytest.mark.parametrize('jit_compile', [False, True])
def test_predict_equals_the_model(monkeypatch, jit_compile):
  monkeypatch.setattr(evaluation, '_BATCH', 16)
  x, _ = tiny.blobs(50)
  flat = flat_model.FlatModel(tiny.normalised, x)
  predict = evaluation.build_predict(flat, x, jit_compile)
  z = flat.init(seeds.pair(0, seeds.Role.INIT, 1))
  model = flat.to_model(z)
  for rows in np.arange(50), np.array([7]), np.array([3, 3, 40, 1] * 5):
    expected = model(x[rows], training=False)
    np.testing.assert_allclose(predict(z, rows), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
  'make, take',
  [
    (tiny.normalised, lambda x: x),
    tiny.MODELS['tuple of inputs'],
    tiny.MODELS['dict of inputs'],
  ],
  ids=['one', 'tuple', 'dict'],
)
def test_predict_with_few_examples_and_several_inputs(make, take):
  x = take(tiny.blobs(20)[0])
  flat = flat_model.FlatModel(make, x)
  z = flat.init(seeds.pair(0, seeds.Role.INIT, 1))
  predict = evaluation.build_predict(flat, x, False)
  np.testing.assert_allclose(
    predict(z, np.arange(20)), flat.to_model(z)(x), rtol=1e-5, atol=1e-6
  )
