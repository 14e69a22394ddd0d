"""Any loss of Keras: equal to Keras's own training, and what is refused."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

import safl_tf
from safl_tf.core import client_config, task_resolution
from tests import marks, tasks, tiny, tiny_rounds

layers = keras.layers
MEAN = client_config.LocalConfig(
  local_epochs=1, batch_size=100, learning_rate=0.1, loss_reduction='mean'
)
FEDAVG = safl_tf.build_fed_avg()


def process(name='three numbers', algorithm=FEDAVG, config=MEAN, **options):
  make, _, _, loss, _ = tasks.TASKS[name]
  options = {'loss': loss, 'clients': tasks.data(name), **options}
  return tiny_rounds.make(algorithm, make, config=config, **options)


@pytest.mark.parametrize('name', tasks.TASKS)
def test_a_step_is_that_of_keras(name):
  make, x, y, loss, data = tasks.TASKS[name]
  model = make()
  model.compile(keras.optimizers.SGD(0.1), loss)
  clients = tasks.clients(x, y, (len(y),), **data)
  trainer = tiny_rounds.make(FEDAVG, model, clients, config=MEAN)
  state, metrics = trainer.next(trainer.initialize())
  weights = data.get('sample_weight')
  if x.dtype.kind == 'U':
    x = tf.constant(x)
  if name == 'own class':  # Keras passes y [N] on as it is, which broadcasts
    y = y[:, None]
  expected = model.train_on_batch(x, y, sample_weight=weights)
  assert metrics.train_loss == pytest.approx(float(expected), rel=1e-5)
  for ours, theirs in zip(
    trainer.get_model_weights(state), model.get_weights(), strict=True
  ):
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=2e-6)


def test_class_weight_is_that_of_keras():
  make, x, y, _, _ = tasks.TASKS['classes']
  model, weights = make(), {0: 0.5, 2: 3.0}
  model.compile(
    keras.optimizers.SGD(0.1),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
  )
  clients = tasks.clients(x, y, (len(y),))
  trainer = tiny_rounds.make(
    FEDAVG, model, clients, config=MEAN, class_weight=weights
  )
  state, _ = trainer.next(trainer.initialize())
  model.fit(x, y, batch_size=100, class_weight=weights, verbose=0)
  for ours, theirs in zip(
    trainer.get_model_weights(state), model.get_weights(), strict=True
  ):
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
  'name',
  marks.some(tasks.TASKS, ['classes', 'three numbers']),
)
def test_executors_agree(name):
  """Also in batches that are not full, whose padding must not count."""
  config = client_config.LocalConfig(
    local_epochs=2, batch_size=8, learning_rate=0.01
  )
  ends = []
  for executor in ('serial', 'threads', 'vectorized'):
    trainer = process(name, config=config, executor=executor)
    states, metrics = tiny_rounds.run(trainer, 2)
    ends.append((states[-1].z_bar, metrics[-1].train_loss))
  for z_bar, loss in ends[1:]:
    np.testing.assert_allclose(z_bar, ends[0][0], rtol=1e-3, atol=1e-5)
    assert loss == pytest.approx(ends[0][1], rel=1e-4)


@pytest.mark.parametrize(
  'name',
  marks.some(
    ['three numbers', 'binary', 'masked tokens'], ['three numbers', 'binary']
  ),
)
def test_xla_agrees(name):
  ends = []
  for jit_compile in ('false', 'true'):
    trainer = process(name, jit_compile=jit_compile)
    states, _ = tiny_rounds.run(trainer, 1)
    ends.append(states[-1].z_bar)
  np.testing.assert_allclose(*ends, rtol=1e-3, atol=1e-5)


def test_fedsgd_is_a_step_on_all_positions():
  """Batches with different numbers of masked positions weigh positions."""
  name = 'masked tokens'
  ends = []
  for batch_size in (5, 100):
    config = client_config.LocalConfig(
      local_epochs=1, batch_size=batch_size, learning_rate=0.5
    )
    trainer = process(name, safl_tf.build_fed_sgd(), config)
    states, _ = tiny_rounds.run(trainer, 2)
    ends.append(states[-1].z_bar)
  np.testing.assert_allclose(*ends, rtol=1e-4, atol=1e-6)


def test_sum_is_the_mean_times_the_examples():
  ends = []
  for reduction, rate in (('mean', 0.31), ('sum', 0.01)):
    config = client_config.LocalConfig(
      1, 100, learning_rate=rate, loss_reduction=reduction
    )
    _, x, y, loss, _ = tasks.TASKS['masked tokens']
    clients = tasks.clients(x[:31], y[:31], (31,))
    trainer = process(
      'masked tokens', config=config, clients=clients, loss=loss
    )
    ends.append(tiny_rounds.run(trainer, 1)[0][-1].z_bar)
  np.testing.assert_allclose(*ends, rtol=1e-4, atol=1e-6)


def by_default(make, y, **options):
  x = tasks.TASKS['classes'][1]
  return tiny_rounds.make(FEDAVG, make, tasks.clients(x, y), **options)


def test_what_a_compiled_model_says_is_honoured():
  model = tasks.dense(3)()
  model.compile('sgd', 'mae', metrics=['mse'], weighted_metrics=['mape'])
  y = tasks.TASKS['three numbers'][2]
  task = by_default(model, y).task
  assert task.name == 'mae' and task.options.metrics == ('mse',)
  assert task.options.weighted_metrics == ('mape',)
  assert by_default(model, y, loss='mse', metrics=[]).task.options.metrics == ()
  # The loss of the argument counts, also if both have one.
  assert by_default(model, y, loss='mse').task.name == 'mse'


@pytest.mark.parametrize(
  'units, activation, y, expected',
  [
    (3, None, 'classes', ('categorical', 'class', 'softmax')),
    (3, 'softmax', 'classes', ('categorical', 'class', None)),
    (1, 'sigmoid', 'binary', ('binary_crossentropy', 'binary', None)),
    (3, 'sigmoid', 'several labels', ('binary_crossentropy', 'binary', None)),
  ],
)
def test_defaults(units, activation, y, expected):
  task = by_default(tasks.dense(units, activation), tasks.TASKS[y][2]).task
  assert (task.name, task.accuracy, task.activation) == expected


@pytest.mark.parametrize(
  'loss, accuracy',
  [
    ('sparse_categorical_crossentropy', 'class'),
    (keras.losses.sparse_categorical_crossentropy, 'class'),
    (
      functools.partial(
        keras.losses.sparse_categorical_crossentropy, from_logits=True
      ),
      'class',
    ),
    (keras.losses.CategoricalFocalCrossentropy(from_logits=True), 'class'),
    (lambda y, outputs: tf.reduce_sum(outputs**2, axis=-1), 'class'),
  ],
)
def test_losses_of_classes(loss, accuracy):
  """Names and functions say nothing about logits; the last layer does."""
  y = tasks.TASKS['classes'][2]
  task = by_default(tasks.dense(3), y, loss=loss).task
  assert task.accuracy == accuracy
  if task.has_probabilities:
    assert task.activation == 'softmax'


def test_focal_loss_takes_class_numbers():
  y = tasks.TASKS['classes'][2]
  one_hot = np.eye(3, dtype=np.float32)[y]
  loss = keras.losses.CategoricalFocalCrossentropy(from_logits=True)
  ends = [
    tiny_rounds.run(by_default(tasks.dense(3), labels, loss=loss), 1)[0][-1]
    for labels in (y, one_hot)
  ]
  np.testing.assert_allclose(ends[0].z_bar, ends[1].z_bar, rtol=1e-5, atol=1e-7)


REFUSED = {
  'no loss for numbers': (
    {'make': tasks.dense(3), 'y': 'three numbers'},
    '^loss=None: y has float32 .* pass a loss, such as mse',
  ),
  'unknown name': (
    {'loss': 'mean_squared_eror'},
    '^loss=mean_squared_eror: did you mean mean_squared_error',
  ),
  'not a loss': ({'loss': 3}, '^loss=int: must be a name, a function'),
  'a class': ({'loss': keras.losses.Huber}, '^loss=type: must be a name'),
  'reduction': (
    {'loss': keras.losses.Huber(reduction='sum')},
    '^loss=reduction=sum: .* loss_reduction',
  ),
  'one value for all': (
    {'loss': lambda y, outputs: tf.reduce_mean(outputs)},
    '^loss=<lambda>: must return a value for each example, not',
  ),
  'a value for each pair': (
    {'loss': lambda y, outputs: tf.reduce_mean(y[:, None] - outputs, (1, 2))},
    '^loss=<lambda>: must not depend on other examples of the batch',
  ),
  'values of other shapes': (
    {
      'make': tasks.dense(3),
      'y': 'classes',
      'loss': lambda y, outputs: outputs**2,
    },
    r'^loss=<lambda>: must return values of shape \(2,\), not \(2, 3\)',
  ),
  'a loss that fails': (
    {'loss': lambda y, outputs: y + outputs[:, :2]},
    '^loss=<lambda>: cannot be computed for y .* outputs',
  ),
  'shapes': (
    {'make': tasks.dense(2), 'loss': 'mse'},
    r'^model=.*outputs have shape \(batch, 2\).* mse needs that of y, '
    r'\(batch, 3\)',
  ),
  'labels of a binary loss': (
    {'make': tasks.dense(1), 'y': 'classes', 'loss': 'binary_crossentropy'},
    '^y=2 in row .*: must be 0 or 1',
  ),
  'one output for classes': (
    {'make': tasks.dense(1), 'y': 'binary'},
    '^model=.*2 classes need .*, or the loss binary_crossentropy',
  ),
  'logits of numbers': (
    {'loss': 'mse', 'from_logits': True},
    '^from_logits=True: has no effect: with the loss mse',
  ),
  'class weights of numbers': (
    {'loss': 'mse', 'class_weight': {0: 2.0}},
    '^class_weight=.*is for labels that are class numbers; use sample_weight',
  ),
  'class weights': (
    {'make': tasks.dense(3), 'y': 'classes', 'class_weight': {3: 1.0}},
    '^class_weight=3: must be',
  ),
  'metrics': (
    {'loss': 'mse', 'metrics': 'mae'},
    '^metrics=mae: must be a list',
  ),
  'score without effect': (
    {'loss': 'mse', 'score': 'cosine_similarity'},
    '^score=cosine_similarity: has no effect: no rule',
  ),
}


@pytest.mark.parametrize('options, message', REFUSED.values(), ids=REFUSED)
def test_refused(options, message):
  options = {'make': tasks.dense(3), 'y': 'three numbers', **options}
  y = tasks.TASKS[options.pop('y')][2]
  with pytest.raises(safl_tf.InputError, match=message):
    by_default(y=y, **options)


def test_tokens_outside_the_outputs():
  _, x, y, _, _ = tasks.TASKS['tokens']
  with pytest.raises(safl_tf.InputError, match=r'^y=9 in row 3: .*\[0, 8\]'):
    wrong = y.copy()
    wrong[3, 2] = 9
    tiny_rounds.make(FEDAVG, tasks.recurrent(), tasks.clients(x, wrong))


def closeness(y, outputs):
  return tf.exp(-tf.reduce_mean(tf.abs(y - outputs), axis=-1))


def test_a_gate_needs_a_score():
  gated = safl_tf.build_extended_safl()
  with pytest.raises(safl_tf.InputError, match=r'^score=None: .* pass'):
    process(algorithm=gated)
  with pytest.raises(safl_tf.InputError, match=r'is -.*; must be in'):
    trainer = process(algorithm=gated, score=lambda y, o: -closeness(y, o))
    tiny_rounds.run(trainer, 2)
  trainer = process(algorithm=gated, score=closeness)
  states, metrics = tiny_rounds.run(trainer, 3)
  last, state = metrics[-1], states[-2]
  x, y = (tasks.TASKS['three numbers'][i] for i in (1, 2))
  model = trainer.get_model(state)
  for k in range(4):
    rows = trainer.clients.indices(k)
    expected = float(np.mean(closeness(y[rows], model(x[rows]))))
    found = last.metrics['global_accuracy'][k]
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize('name', ['binary', 'several labels', 'masked tokens'])
def test_the_accuracy_of_a_gate(name):
  trainer = process(name, safl_tf.build_extended_safl())
  states, metrics = tiny_rounds.run(trainer, 2)
  _, x, y, _, _ = tasks.TASKS[name]
  model = trainer.get_model(states[1])
  for k in range(4):
    rows = trainer.clients.indices(k)
    outputs, labels = np.asarray(model(x[rows])), y[rows]
    if name == 'masked tokens':
      valid = x[rows] != 0
      right = (outputs.argmax(axis=-1) == labels)[valid]
    elif name == 'binary':
      right = (outputs[:, 0] > 0.5) == labels
    else:
      right = (outputs > 0) == labels
    found = metrics[1].metrics['global_accuracy'][k]
    assert found == pytest.approx(right.mean(), rel=1e-5)


def test_vocabularies_are_kept():
  given = tasks.of_text()
  trainer = tiny_rounds.make(FEDAVG, given, tasks.data('text'), config=MEAN)
  states, _ = tiny_rounds.run(trainer, 1)
  model = trainer.get_model(states[-1])
  words = [m.layers[0].get_vocabulary() for m in (given, model)]
  assert words[0] == words[1] and 'luck' in words[0]


def no_xla(y, outputs):
  wrong = lambda a, b: np.abs(a - b).mean(axis=-1).astype(np.float32)
  values = tf.numpy_function(wrong, [y, outputs], tf.float32)
  values.set_shape([outputs.shape[0]])
  return values + 0 * tf.reduce_mean(outputs, axis=-1)


def test_a_loss_that_xla_cannot_compile(caplog):
  trainer = process(loss=no_xla, jit_compile='auto')
  assert not trainer.jit_compile
  tiny_rounds.run(trainer, 1)


def test_a_model_that_cannot_be_stacked(caplog, monkeypatch):
  from safl_tf.core.executors import vectorized

  def fail(self):
    raise ValueError('no such operation')

  monkeypatch.setattr(vectorized.Vectorized, 'trace', fail)
  trainer = process(executor='vectorized')
  assert trainer.arithmetic['stack'] is None
  assert 'cannot be stacked (no such operation)' in caplog.text


def test_json():
  for name in tasks.TASKS:
    task = process(name).task
    values = task_resolution.to_json(task)
    if name.startswith('own'):
      assert values['loss'] is None
      continue
    options = task_resolution.from_json(values)
    again = process(name, loss=options.loss, from_logits=options.from_logits)
    assert again.task.accuracy == task.accuracy
    y, outputs = task.example
    np.testing.assert_array_equal(
      task.loss(y, outputs), again.task.loss(y, outputs)
    )


def test_tiny_models_are_as_before():
  assert tiny_rounds.make(model=tiny.dense).task.name == 'categorical'
