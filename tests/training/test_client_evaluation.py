"""Scores on the clients' own test examples."""

import glob

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

import safl_tf
from safl_tf.core import seeds
from safl_tf.data import client_data
from safl_tf.reporting import metrics, plots
from safl_tf.training import client_evaluation
from safl_tf.util import errors
from tests import tasks, tiny, tiny_rounds
from tests.training import test_loop

SIZES = (20, 13, 31, 7, 1, 16)
CLIENTS = tiny.clients(SIZES)
TRAIN, TEST = CLIENTS.split(0.3, seed=1)
CONFIG = tiny_rounds.CONFIG
MODELS = ('global', 'own', 'personalized')
NO_EXPORT = {'export': 'none', 'checkpoint_every': 1}


def shared(parts, **options):
  """Clients that hold these rows."""
  x, y = tiny.blobs(1 + max(max(part) for part in parts))
  return client_data.ClientData.from_arrays(
    x, y, parts, num_classes=tiny.CLASSES, **options
  )


# Splits


@pytest.mark.parametrize('fraction', [0.01, 0.3, 0.9])
def test_split(fraction):
  train, test = CLIENTS.split(fraction)
  assert train.client_ids == CLIENTS.client_ids
  assert test.client_ids == ['0', '1', '2', '3', '5']  # 4 has one example
  for k, m in enumerate(SIZES):
    name, rows = str(k), set(CLIENTS.indices(k).tolist())
    tested = set()
    if name in test.client_ids:
      tested = set(test.indices(test.client_ids.index(name)).tolist())
    trained = set(train.indices(k).tolist())
    assert trained | tested == rows and not trained & tested
    assert len(tested) == min(m - 1, max(1, round(fraction * m)))


def test_seeds_of_splits():
  one, same, other = (CLIENTS.split(0.3, seed=s)[1] for s in (0, 0, 1))
  tested = [
    np.concatenate([clients.indices(k) for k in range(5)])
    for clients in (one, same, other)
  ]
  np.testing.assert_array_equal(tested[0], tested[1])
  assert not np.array_equal(tested[0], tested[2])


def test_nobody_trains_on_the_test_examples_of_another():
  rng = np.random.default_rng(0)
  parts = [rng.choice(60, 25, replace=False) for _ in range(8)]
  train, test = shared(parts).split(0.3)
  trained, tested = (
    set(np.concatenate([c.indices(k) for k in range(c.num_clients)]).tolist())
    for c in (train, test)
  )
  assert tested and not trained & tested
  assert trained | tested == set(np.concatenate(parts).tolist())
  assert test.num_clients == 8


def test_clients_with_one_example_train_on_it():
  """Also if a larger client before them holds it, too."""
  parts = [np.arange(10), *([k] for k in range(5))]
  train, test = shared(parts).split(0.5)
  assert train.num_clients == 6 and test.client_ids == ['0']
  assert set(test.indices(0).tolist()) == set(range(5, 10))


def test_splits_that_are_refused():
  with pytest.raises(errors.InputError, match='all clients have one example'):
    tiny.clients((1, 1)).split()
  with pytest.raises(errors.InputError, match=r'^test_fraction=0: '):
    CLIENTS.split(0)
  with pytest.raises(errors.InputError, match=r'^seed=-1: '):
    CLIENTS.split(seed=-1)


def test_a_split_keeps_what_examples_have():
  made = tasks.data('weighted')
  for part in made.split():
    np.testing.assert_array_equal(part.sample_weight, made.sample_weight)


# Statistics


@pytest.mark.parametrize('total', [1, 10, 11, 25])
def test_statistics_equal_numpy(total):
  rng = np.random.default_rng(total)
  values, sizes = rng.uniform(size=total), rng.integers(1, 9, total)
  found = client_evaluation.statistics(values, sizes)
  worst = {1: 1, 10: 1, 11: 2, 25: 3}[total]
  assert found == pytest.approx(
    {
      'mean': values.sum() / total,
      'weighted_mean': (values * sizes).sum() / sizes.sum(),
      'std': np.sqrt(((values - values.mean()) ** 2).mean()),
      'worst_decile': sorted(values)[:worst] @ np.ones(worst) / worst,
      **{f'p{q}': np.quantile(values, q / 100) for q in (5, 25, 50, 75, 95)},
    }
  )
  assert tuple(found) == tuple(metrics.STATISTICS)
  lower = client_evaluation.statistics(values, sizes, lower_is_better=True)
  assert lower['worst_decile'] == pytest.approx(
    np.mean(sorted(values)[-worst:])
  )


# Scores


@pytest.fixture(scope='module')
def trained():
  trainer = tiny_rounds.make(clients=TRAIN)
  return trainer, tiny_rounds.run(trainer, 2)[0][-1]


def scores_of(model, clients, k):
  rows = clients.indices(k)
  logits = np.asarray(model(clients.x[rows]), np.float64)
  y = clients.y[rows]
  e = np.exp(logits - logits.max(axis=1, keepdims=True))
  y_hat = (e / e.sum(axis=1, keepdims=True))[np.arange(len(y)), y]
  return np.mean(logits.argmax(axis=1) == y), -np.log(y_hat).mean()


def test_scores_are_those_of_keras_models(trained):
  trainer, state = trained
  found = safl_tf.evaluate(trainer, state, TEST)
  assert found.metrics == ['accuracy'] and len(found.rows) == 5
  for j, row in enumerate(found.rows):
    k = TRAIN.client_ids.index(row['client'])
    assert row['test_examples'] == TEST.sizes[j]
    for name, z in (('global', state.z_bar), ('own', state.client_models[k])):
      model = trainer.model.to_model(z)
      accuracy, loss = scores_of(model, TEST, j)
      assert row[f'{name}_accuracy'] == pytest.approx(accuracy)
      assert row[f'{name}_loss'] == pytest.approx(loss, rel=1e-4)
  summary, frame = found.summary, found.frame
  for name in ('global', 'own'):
    values = frame[f'{name}_accuracy'].to_numpy()
    expected = client_evaluation.statistics(values, frame.test_examples)
    assert summary.loc[name, 'accuracy'].to_dict() == pytest.approx(expected)
  assert 'personalized' not in summary.index
  assert '5 clients, mean accuracy: global' in repr(found)
  assert 'weighted_mean' in found._repr_html_()


def steps_by_hand(trainer, state, k, steps):
  """FedAvg's steps on a client's training examples, with Keras."""
  rng = seeds.generator(state.seed, seeds.Role.BATCHES, state.t, k)
  rows, size = TRAIN.indices(k), CONFIG.batch_size
  batches = []
  while len(batches) < steps:
    order = rng.permutation(rows)
    batches += [order[i : i + size] for i in range(0, len(order), size)]
  model = trainer.model.to_model(state.z_bar)
  for batch in batches[:steps]:
    with tf.GradientTape() as tape:
      outputs = model(TRAIN.x[batch], training=True)
      loss = tf.reduce_sum(
        tf.nn.sparse_softmax_cross_entropy_with_logits(TRAIN.y[batch], outputs)
      )
    variables = model.trainable_variables
    for v, g in zip(variables, tape.gradient(loss, variables), strict=True):
      v.assign_sub(CONFIG.learning_rate * g)
  return model


@pytest.mark.parametrize('steps', [1, 5])
def test_personalized_models(trained, steps):
  trainer, state = trained
  found = safl_tf.evaluate(trainer, state, TEST, personalize_steps=steps)
  plain = safl_tf.evaluate(trainer, state, TEST)
  for j, (row, without) in enumerate(zip(found.rows, plain.rows, strict=True)):
    k = TRAIN.client_ids.index(row['client'])
    model = steps_by_hand(trainer, state, k, steps)
    accuracy, loss = scores_of(model, TEST, j)
    assert row['personalized_loss'] == pytest.approx(loss, rel=1e-4)
    assert row['personalized_accuracy'] == pytest.approx(accuracy)
    assert row['personalized_loss'] != pytest.approx(row['global_loss'])
    assert {n: row[n] for n in without} == without


@pytest.mark.parametrize('executor', ['serial', 'vectorized'])
def test_executors_personalize_alike(trained, executor):
  """Also after rules with arrays of their own."""
  states = []
  for name in ('threads', executor):
    trainer = tiny_rounds.make(
      safl_tf.build_scaffold(), clients=TRAIN, executor=name
    )
    state = tiny_rounds.run(trainer, 2)[0][-1]
    found = safl_tf.evaluate(trainer, state, TEST, personalize_steps=3)
    states.append(found.frame.personalized_loss.to_numpy())
  np.testing.assert_allclose(*states, rtol=1e-4)


@pytest.mark.parametrize(
  'algorithm, models',
  [
    (safl_tf.build_local_only(), {'own'}),
    (safl_tf.build_fed_sgd(), {'global'}),
    (safl_tf.build_centralized(), {'global'}),
    (safl_tf.build_fed_avg(), {'global', 'own'}),
  ],
  ids=['local_only', 'fed_sgd', 'centralized', 'fed_avg'],
)
def test_models_of_algorithms(algorithm, models):
  trainer = tiny_rounds.make(algorithm, clients=TRAIN)
  state = tiny_rounds.run(trainer, 1)[0][-1]
  found = safl_tf.evaluate(trainer, state, TEST)
  assert set(found.summary.index.get_level_values('model')) == models
  for row in found.rows:
    assert {n for n in MODELS if f'{n}_accuracy' in row} == models


def test_clients_that_did_not_train(trained):
  trainer, state = trained
  x, y = tiny.blobs(12, seed=5)
  new = client_data.ClientData.from_arrays(
    x, y, [np.arange(5), np.arange(5, 12)], client_ids=['0', 'new']
  )
  first, second = safl_tf.evaluate(trainer, state, new).rows
  assert 'own_accuracy' in first and 'own_accuracy' not in second
  assert 'global_accuracy' in second


def test_refused(trained):
  trainer, state = trained
  calls = {
    'clients=tuple': ((trainer, state, (1, 2)), {}),
    'process=3': ((3, state, TEST), {}),
    'state=of round 0': ((trainer, trainer.initialize(), TEST), {}),
    'personalize_steps=-1': ((trainer, state, TEST, -1), {}),
    'clients=new: is no client of the process': (
      (trainer, state, shared([[0, 1]], client_ids=['new']), 2),
      {},
    ),
    'clients: y=': ((trainer, state, tasks.data('three numbers')), {}),
  }
  for message, (arguments, options) in calls.items():
    with pytest.raises(errors.InputError, match=f'^{message}'):
      safl_tf.evaluate(*arguments, **options)
  for algorithm in safl_tf.build_local_only(), safl_tf.build_centralized():
    with pytest.raises(errors.InputError, match='personalize_steps=2: has no'):
      test_loop.train(
        1, TRAIN, algorithm, test_clients=TEST, personalize_steps=2
      )


def test_tasks_without_accuracy():
  """The main metric is the loss, whose largest values are the worst."""
  train, test = tasks.data('three numbers').split()
  make, _, _, loss, _ = tasks.TASKS['three numbers']
  trainer = tiny_rounds.make(
    safl_tf.build_fed_avg(), make, train, loss=loss, metrics=['mae']
  )
  state = tiny_rounds.run(trainer, 1)[0][-1]
  found = safl_tf.evaluate(trainer, state, test)
  assert found.metrics == ['loss', 'mae']
  frame, summary = found.frame, found.summary
  assert 'global_accuracy' not in frame
  for metric in found.metrics:
    worst = summary.loc[('global', metric), 'worst_decile']
    assert worst == frame[f'global_{metric}'].max()


# Runs


@pytest.fixture(autouse=True)
def no_plots(monkeypatch):
  monkeypatch.setattr(plots, 'write_all', lambda *args: None)


def run(folder, rounds=4, **options):
  options = {
    'test_clients': TEST,
    'eval_clients_every': 2,
    'personalize_steps': 2,
    'output_dir': folder,
    **NO_EXPORT,
    **options,
  }
  return test_loop.train(rounds, TRAIN, **options)


def tags(folder):
  """The tags of a folder's events, by round."""
  found = {}
  for path in glob.glob(f'{folder}/logdir/events*'):
    for event in tf.compat.v1.train.summary_iterator(path):
      for value in event.summary.value:
        found.setdefault(event.step, set()).add(value.tag)
  return found


def test_files_of_a_run(tmp_path):
  result = run(tmp_path / 'run')
  columns = [
    f'client_{model}_accuracy_{statistic}'
    for model in MODELS
    for statistic in metrics.STATISTICS
  ]
  history = pd.read_csv(tmp_path / 'run' / 'metrics.csv').set_index('round')
  assert [c for c in history if c.startswith('client_')] == columns
  for t, row in history[columns].iterrows():
    assert row.notna().all() if t % 2 == 0 else row.isna().all()
  last = result.client_scores.columns()
  assert history.loc[4, columns].to_dict() == last
  by_hand = safl_tf.evaluate(result.process, result.state, TEST, 2)
  assert by_hand.columns() == last
  found = tags(tmp_path / 'run')
  expected = {'client_eval/' + c.removeprefix('client_') for c in columns}
  assert expected <= found[2] and not expected & found[1]
  table = pd.read_csv(tmp_path / 'run' / 'clients.csv', dtype={'client': str})
  assert table.client.tolist() == TRAIN.client_ids
  assert table.examples.tolist() == TRAIN.sizes.tolist()
  scored = table.dropna(subset='test_examples').set_index('client')
  assert scored.index.tolist() == TEST.client_ids  # not the single example
  for name in MODELS:
    np.testing.assert_allclose(
      scored[f'{name}_accuracy'], result.client_scores.frame[f'{name}_accuracy']
    )


def test_resumed_rows_are_equal(tmp_path):
  whole = run(tmp_path / 'whole')
  run(tmp_path / 'parts', rounds=2)
  resumed = run(tmp_path / 'parts')
  test_loop.check_same(whole, resumed)
  one, other = (tmp_path / n / 'clients.csv' for n in ('whole', 'parts'))
  assert one.read_text() == other.read_text()
  # A call of a completed run writes the same table again.
  other.unlink()
  again = run(tmp_path / 'parts')
  test_loop.check_same(whole, again)
  assert one.read_text() == other.read_text()


@pytest.mark.parametrize(
  'name, changed',
  [
    ('personalize_steps', {'personalize_steps': 3}),
    ('eval_clients_every', {'eval_clients_every': 1}),
    ('test_clients', {'test_clients': CLIENTS.split(0.3, seed=2)[1]}),
  ],
)
def test_a_run_with_other_tests_does_not_resume(tmp_path, name, changed):
  run(tmp_path / 'run', rounds=1)
  with pytest.raises(errors.InputError, match=name):
    run(tmp_path / 'run', rounds=2, **changed)


def test_client_table_on_training_examples(tmp_path):
  result = run(
    tmp_path / 'run',
    rounds=1,
    test_clients=None,
    eval_clients_every=1,
    personalize_steps=0,
    client_table=True,
  )
  assert result.client_scores is None
  table = pd.read_csv(tmp_path / 'run' / 'clients.csv')
  assert {'own_train_accuracy', 'global_train_loss'} <= set(table)
  assert 'own_accuracy' not in table
  own = result.process.model.to_model(result.state.client_models[2])
  accuracy, loss = scores_of(own, TRAIN, 2)
  assert table.own_train_accuracy[2] == pytest.approx(accuracy)
  assert table.own_train_loss[2] == pytest.approx(loss, rel=1e-4)
