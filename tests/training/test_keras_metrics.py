"""Metrics of Keras in evaluations."""

import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

import safl_tf
from safl_tf.data import examples
from safl_tf.training import evaluation
from safl_tf.util import errors
from tests import tasks, tiny_rounds

FEDAVG = safl_tf.build_fed_avg()


def scored(name, metrics=None, weighted=None, make=None, loss=None):
  """Scores of an untrained model on a task, its outputs and the names."""
  given, x, y, of_task, options = tasks.TASKS[name]
  made = (make or given)()
  if weighted is not None:
    made.compile(loss=of_task, metrics=metrics, weighted_metrics=weighted)
    metrics = None
  trainer = tiny_rounds.make(
    FEDAVG,
    made,
    tasks.data(name),
    loss=loss or of_task,
    metrics=metrics,
    init='shared',
  )
  state = trainer.initialize()
  weights = options.get('sample_weight')
  data = examples.Examples(x.astype(trainer.clients.x.dtype), y, weights)
  evaluator = evaluation.Evaluator(trainer.trainer_of(state), data)
  z = state.client_models[0]
  outputs = np.asarray(trainer.model.to_model(z)(x))
  found = evaluator(z)
  assert evaluator.names == list(found.named())
  return found, outputs, y


def of_keras(metric, y, outputs, weights=None):
  metric.update_state(y, outputs, sample_weight=weights)
  return np.asarray(metric.result())


def test_names_and_objects():
  found, outputs, y = scored(
    'three numbers',
    ['mae', keras.metrics.RootMeanSquaredError(), tasks.pinball],
  )
  assert list(found.metrics) == ['mae', 'root_mean_squared_error', 'pinball']
  assert found.accuracy is None and found.top5_accuracy is None
  errors_ = y - outputs
  assert found.metrics['mae'] == pytest.approx(np.abs(errors_).mean(), rel=1e-5)
  assert found.metrics['root_mean_squared_error'] == pytest.approx(
    np.sqrt((errors_**2).mean()), rel=1e-5
  )
  assert found.metrics['pinball'] == pytest.approx(
    float(tf.reduce_mean(tasks.pinball(y, outputs))), rel=1e-5
  )


def test_names_get_probabilities_and_objects_outputs():
  thresholds = [0.5]
  found, logits, y = scored(
    'several labels',
    ['mse', keras.metrics.BinaryAccuracy('object', threshold=0.5)],
  )
  y_hat = 1 / (1 + np.exp(-logits))
  assert found.metrics['mse'] == pytest.approx(
    np.mean((y - y_hat) ** 2), rel=1e-5
  )
  assert found.metrics['object'] == pytest.approx(
    np.mean((logits > thresholds[0]) == y)
  )
  assert found.accuracy == pytest.approx(np.mean((logits > 0) == y))
  assert found.accuracy != found.metrics['object']


def test_names_get_probabilities_of_classes():
  found, logits, y = scored('classes', ['sparse_categorical_crossentropy'])
  assert found.metrics['sparse_categorical_crossentropy'] == pytest.approx(
    found.loss, rel=1e-5
  )
  assert found.accuracy == np.mean(logits.argmax(axis=1) == y)


def test_labels_of_a_binary_task():
  found, outputs, y = scored('binary', ['auc', keras.metrics.Recall(name='r')])
  auc = of_keras(keras.metrics.AUC(), y[:, None], outputs)
  assert found.metrics['auc'] == pytest.approx(float(auc))
  right = (outputs[:, 0] > 0.5)[y == 1].mean()
  assert found.metrics['r'] == pytest.approx(right)


def test_one_value_for_each_class():
  f1 = keras.metrics.F1Score(threshold=0.5, name='f1')
  found, outputs, y = scored('several labels', [f1])
  again = keras.metrics.F1Score(threshold=0.5)
  expected = of_keras(again, y.astype(np.float32), outputs)
  assert list(found.metrics) == ['f1_0', 'f1_1', 'f1_2']
  assert list(found.metrics.values()) == pytest.approx(expected.tolist())


def test_weighted_metrics():
  found, outputs, y = scored(
    'weighted', ['mae'], [keras.metrics.MeanAbsoluteError('weighted')]
  )
  weights = tasks.data('weighted').sample_weight
  values = np.abs(y - outputs).mean(axis=1)
  assert found.metrics['mae'] == pytest.approx(values.mean(), rel=1e-5)
  expected = (values * weights).sum() / weights.sum()
  assert found.metrics['weighted'] == pytest.approx(expected, rel=1e-5)
  # As in Keras, the loss is divided by the number of examples.
  assert found.loss == pytest.approx((values * weights).mean(), rel=1e-5)


def test_masked_positions_do_not_count():
  metric = keras.metrics.SparseCategoricalAccuracy('object')
  found, outputs, y = scored('masked tokens', [metric])
  valid = tasks.TASKS['masked tokens'][1] != 0
  right = (outputs.argmax(axis=-1) == y)[valid].mean()
  assert found.accuracy == pytest.approx(right)
  assert found.metrics['object'] == pytest.approx(right)


def test_the_metrics_of_a_compiled_model():
  make, x, y, loss, _ = tasks.TASKS['three numbers']
  model = make()
  model.compile(loss=loss, metrics=['mae'])
  trainer = tiny_rounds.make(FEDAVG, model, tasks.data('three numbers'))
  evaluator = evaluation.Evaluator(
    trainer.trainer_of(trainer.initialize()), examples.Examples(x, y)
  )
  assert evaluator.names == ['loss', 'mae']
  found = evaluator(trainer.initialize().client_models[0])
  values = model.evaluate(x, y, verbose=0, return_dict=True)
  assert found.loss == pytest.approx(values['loss'], rel=1e-5)
  assert found.metrics['mae'] == pytest.approx(values['mae'], rel=1e-5)


def test_the_name_accuracy():
  """The word is the accuracy that evaluations have; an object replaces it."""
  found, logits, y = scored('classes', ['accuracy'])
  own = np.mean(logits.argmax(axis=1) == y)
  assert found.accuracy == own and not found.metrics
  top2 = keras.metrics.SparseTopKCategoricalAccuracy(2, name='accuracy')
  found, logits, y = scored('classes', [top2])
  second = np.sort(logits, axis=1)[:, -2]
  expected = np.mean(logits[np.arange(len(y)), y] >= second)
  assert found.accuracy == pytest.approx(expected) and not found.metrics


def failing(y, outputs):
  raise ValueError('no such thing')


MAE = keras.metrics.MeanAbsoluteError
REFUSED = {
  'twice': (['mae', MAE('mae')], '^metrics=mae: is the name of another'),
  'loss': ([MAE('loss')], '^metrics=loss: is the name of another'),
  'top 5': ([MAE('top5_accuracy')], '^metrics=top5_accuracy: is the name'),
  'accuracy': (['accuracy'], '^metrics=accuracy: there is none with the loss'),
  'a comma': ([MAE('a,b')], '^metrics=a,b: must have a name without'),
  'unknown': (
    ['mean_absolute_eror'],
    '^metrics=mean_absolute_eror: did you mean mean_absolute_error',
  ),
  'fails': ([failing], r'^metrics=failing: cannot be .*\(.*no such thing\)'),
  'shapes': (
    [keras.metrics.SparseCategoricalAccuracy('a')],
    '^metrics=a: cannot be computed for y .* and outputs',
  ),
  'a class': ([MAE], '^metrics=type: must be a name'),
}


@pytest.mark.parametrize('metrics, message', REFUSED.values(), ids=REFUSED)
def test_refused(metrics, message, tmp_path):
  make, x, y, loss, _ = tasks.TASKS['three numbers']
  with pytest.raises(errors.InputError, match=message):
    safl_tf.train(
      make,
      tasks.data('three numbers'),
      FEDAVG,
      loss=loss,
      metrics=metrics,
      test_data=(x, y),
      rounds=1,
      output_dir=tmp_path / 'run',
      jit_compile='false',
    )
  assert not list(tmp_path.iterdir())


def test_columns_of_a_run(tmp_path):
  make, x, y, loss, _ = tasks.TASKS['several labels']
  result = safl_tf.train(
    make,
    tasks.data('several labels'),
    FEDAVG,
    loss=loss,
    metrics=['mse', keras.metrics.F1Score(name='f1')],
    test_data=(x, y),
    rounds=2,
    eval_every=2,
    config=tiny_rounds.CONFIG,
    output_dir=tmp_path / 'run',
    export='none',
    jit_compile='false',
    progress=False,
  )
  history = pd.read_csv(tmp_path / 'run' / 'metrics.csv').set_index('round')
  columns = ['test_mse', *(f'test_f1_{i}' for i in range(3))]
  at = history.columns.get_loc('test_loss') + 1
  assert history.columns[at : at + 4].tolist() == columns
  assert history.loc[1, columns].isna().all()
  y_hat = 1 / (1 + np.exp(-np.asarray(result.model(x))))
  expected = np.mean((y - y_hat) ** 2)
  assert history.loc[2, 'test_mse'] == pytest.approx(expected, rel=1e-4)
  assert history.loc[2, 'test_mse'] == result.history[1]['test_mse']
  assert history['test_top5_accuracy'].isna().all()
