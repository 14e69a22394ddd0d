import keras
import numpy as np
import pytest
import tensorflow as tf

from safl_tf.core import flat_model, seeds, task, task_resolution
from safl_tf.training import evaluation, scores
from tests import tiny


def outputs(total=50, classes=8, seed=0):
  rng = np.random.default_rng(seed)
  return rng.normal(size=(total, classes)).astype(np.float32)


def labels(total=50, classes=8, seed=1):
  return np.random.default_rng(seed).integers(0, classes, total)


def score(values, y, loss='categorical', from_logits=True, parts=1):
  classes = values.shape[1]
  head = keras.layers.Dense(classes, None if from_logits else 'softmax')
  model = keras.Sequential([keras.Input((2,)), head])
  outputs = tf.constant(values)
  learned = task_resolution.resolve(
    task.Options(loss), task.Options(), model, outputs, y, None
  )
  scorer = scores.Scorer(learned)
  for rows in np.array_split(np.arange(len(y)), parts):
    scorer.update(values[rows], y[rows])
  return scorer.result()


def test_scores_equal_numpy():
  logits, y = outputs(), labels()
  found = score(logits, y)
  order = np.argsort(-logits, axis=1)
  first = order[:, 0] == y
  assert found.accuracy == pytest.approx(first.mean())
  assert found.top5_accuracy == pytest.approx(
    np.mean([y[i] in order[i, :5] for i in range(50)])
  )
  log_sums = np.log(np.exp(logits.astype(np.float64)).sum(axis=1))
  losses = log_sums - logits[np.arange(50), y]
  assert found.loss == pytest.approx(losses.mean(), rel=1e-6)
  np.testing.assert_array_equal(found.class_counts, np.bincount(y, minlength=8))
  for c in range(8):
    assert found.class_accuracy[c] == pytest.approx(first[y == c].mean())


def test_scores_equal_keras():
  logits, y = outputs(), labels()
  found = score(logits, y)
  for metric, value in (
    (keras.metrics.SparseCategoricalAccuracy(), found.accuracy),
    (keras.metrics.SparseTopKCategoricalAccuracy(5), found.top5_accuracy),
  ):
    metric.update_state(y, logits)
    assert float(metric.result()) == pytest.approx(value)


def test_equal_outputs_rank_the_lower_class_first():
  found = score(np.zeros((8, 8), np.float32), np.arange(8))
  assert found.accuracy == 1 / 8
  assert found.top5_accuracy == 5 / 8
  np.testing.assert_array_equal(found.class_accuracy, [1, *[0] * 7])


def test_non_finite_outputs_are_wrong():
  logits = np.array([[5, 0, 0], [np.nan] * 3, [np.inf, 0, 0]], np.float32)
  found = score(logits, np.zeros(3, np.int64))
  assert found.accuracy == pytest.approx(1 / 3)


def test_class_without_examples():
  found = score(np.eye(3, dtype=np.float32), np.array([0, 1, 1]))
  np.testing.assert_array_equal(found.class_counts, [1, 2, 0])
  np.testing.assert_array_equal(found.class_accuracy, [1, 0.5, np.nan])


def test_top5_accuracy_is_for_more_than_five_classes():
  assert score(outputs(20, 5), labels(20, 5)).top5_accuracy is None
  found = score(outputs(20, 6), labels(20, 6)).top5_accuracy
  assert found is not None and found < 1


def test_parts_add_up():
  whole, parts = (score(outputs(), labels(), parts=n) for n in (1, 4))
  assert parts.loss == pytest.approx(whole.loss, rel=1e-6)
  assert parts.named().keys() == whole.named().keys()
  assert parts.accuracy == whole.accuracy
  assert parts.top5_accuracy == whole.top5_accuracy
  for name in 'class_accuracy', 'class_counts':
    np.testing.assert_array_equal(getattr(parts, name), getattr(whole, name))


def test_mean_of_models():
  both = [score(outputs(seed=s), labels()) for s in (0, 5)]
  found = scores.mean(both)
  for name in 'loss', 'accuracy', 'top5_accuracy':
    values = [getattr(s, name) for s in both]
    assert getattr(found, name) == pytest.approx(np.mean(values))


def test_other_losses():
  y = np.array([1, 2])
  y_hat = np.full((2, 10), 0.1, np.float32)
  assert score(y_hat, y, from_logits=False).loss == pytest.approx(
    2.3026, abs=5e-5
  )
  assert score(y_hat, y, 'paper', False).loss == pytest.approx(3.2508, abs=5e-5)


@pytest.mark.parametrize('jit_compile', [False, True])
def test_predict_equals_the_model(monkeypatch, jit_compile):
  monkeypatch.setattr(evaluation, '_BATCH', 16)
  x, _ = tiny.blobs(50)
  flat = flat_model.FlatModel(tiny.normalised, x)
  predict = evaluation.Predictor(flat, x, jit_compile)
  z = flat.init(seeds.pair(0, seeds.Role.INIT, 1))
  model = flat.to_model(z)
  for rows in np.arange(50), np.array([7]), np.array([3, 3, 40, 1] * 5):
    expected = model(x[rows], training=False)
    found = predict(z, rows)
    assert found.mask is None
    np.testing.assert_allclose(found.outputs, expected, rtol=1e-5, atol=1e-6)


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
  predict = evaluation.Predictor(flat, x, False)
  np.testing.assert_allclose(
    predict(z, np.arange(20)).outputs, flat.to_model(z)(x), rtol=1e-5, atol=1e-6
  )
