"""Ray's workers compute the bits of `threads`, for everything that trains."""

import dataclasses
import functools

import keras
import numpy as np
import pytest

import safl_tf
from safl_tf.algorithms import registry
from safl_tf.core.executors.ray import workers as workers_lib
from safl_tf.data import client_data
from safl_tf.models import lenet5
from safl_tf.training import metrics_log
from safl_tf.util import choices
from tests import marks, memories, tasks, tiny, tiny_rounds

pytestmark = pytest.mark.usefixtures('no_outputs')

TWO = safl_tf.RayConfig(workers=2)


@pytest.fixture(scope='module')
def ray():
  """The executor with two workers, which stay for all tests."""
  with workers_lib.find(TWO, 'auto').held():
    yield TWO


def bits(state):
  """All that a state is made of."""
  kept = [state.kept(k) for k in range(len(tiny_rounds.SIZES))]
  arrays = [
    {'z_bar': state.z_bar} if state.z_bar is not None else {},
    memories.to_arrays(state.memory),
    *kept,
  ]
  return [{n: a.tobytes() for n, a in named.items()} for named in arrays]


def measured(metrics):
  """A round's metrics without those of workers."""
  values = metrics._replace(workers=None, metrics=None)
  return [np.asarray(value).tobytes() for value in values if value is not None]


def check_equal(one, other, rounds=2):
  """Compares two processes round by round."""
  state = one.initialize(0)
  for _ in range(rounds):
    expected, mine = one.next(state)
    state, others = other.next(state)  # continues a state of the other
    assert bits(state) == bits(expected)
    assert measured(mine) == measured(others)
    assert mine.workers is None and others.workers.lost == 0
  other.close()


def check(executor, base='threads', rounds=2, **options):
  make = functools.partial(tiny_rounds.make, **options)
  check_equal(make(executor=base), make(executor=executor), rounds)


@pytest.mark.parametrize('chunk', marks.some([1, 4, 100], [4]))
def test_any_chunk(ray, chunk):
  check(dataclasses.replace(ray, chunk=chunk))


@pytest.mark.parametrize(
  'name',
  marks.some(choices.ALGORITHMS, ['extended_safl', 'fedma', 'scaffold_safl']),
)
def test_algorithm(ray, name):
  check(ray, algorithm=registry.build(name))


@keras.saving.register_keras_serializable('tests')
class Scaled(keras.layers.Layer):
  """A user's layer, which no worker can import."""

  def __init__(self, factor, **kwargs):
    super().__init__(**kwargs)
    self.factor = factor

  def call(self, inputs):
    return self.factor * inputs

  def get_config(self):
    return {**super().get_config(), 'factor': self.factor}


def own_layer():
  return keras.Sequential(
    [
      keras.Input((tiny.FEATURES,)),
      Scaled(0.5),
      keras.layers.Dense(tiny.CLASSES),
    ]
  )


def frozen():
  network = tiny.normalised()
  network.layers[0].trainable = False
  return network


MODELS = {
  'batch norm and dropout': lambda: tiny.normalised,
  'functional': lambda: tiny.functional,
  'subclassed': lambda: tiny.Subclassed,
  'own layer': lambda: own_layer,
  'a lambda': lambda: lambda: own_layer(),
  'a model': tiny.functional,
  'a model with an own layer': own_layer,
  'a frozen model': frozen,
}


@pytest.mark.parametrize(
  'name',
  marks.some(MODELS, ['batch norm and dropout', 'a model with an own layer']),
)
def test_model(ray, name):
  check(ray, model=MODELS[name](), from_logits=True)


@pytest.mark.parametrize(
  'name',
  marks.some(
    ['weighted', 'masked tokens', 'own function', 'text'], ['weighted']
  ),
)
def test_task(ray, name):
  make, _, _, loss, _ = tasks.TASKS[name]
  sizes = {'clients': tasks.data(name), 'model': make, 'loss': loss}
  one, other = (
    tiny_rounds.make(executor=executor, **sizes)
    for executor in ('threads', ray)
  )
  state, _ = one.next(one.initialize(0))
  again, _ = other.next(other.initialize(0))
  assert state.z_bar.tobytes() == again.z_bar.tobytes()
  other.close()


@pytest.mark.slow
def test_personalized_models(ray):
  """A gate's own score stays with the rounds."""
  train, test = tiny_rounds.CLIENTS.split(0.3)
  options = {
    'algorithm': safl_tf.build_extended_safl(),
    'clients': train,
    'score': 'sparse_categorical_accuracy',
  }
  frames = []
  for executor in ('threads', ray):
    trainer = tiny_rounds.make(executor=executor, **options)
    state, _ = trainer.next(trainer.initialize(0))
    frames.append(safl_tf.evaluate(trainer, state, test, 3).rows)
    trainer.close()
  assert frames[0] == frames[1]


ADAM = dataclasses.replace(tiny_rounds.CONFIG, optimizer='adam')
OPTIONS = {
  'attack on uploads': {'attack': safl_tf.Attack('sign_flip', fraction=0.4)},
  'attack on data': {'attack': safl_tf.Attack('label_flip', fraction=0.4)},
  'hold-out': {
    'algorithm': safl_tf.build_extended_safl(),
    'config': dataclasses.replace(tiny_rounds.CONFIG, holdout=0.3),
  },
  'some clients': {'algorithm': safl_tf.build_safl(clients_per_round=3)},
  'optimizer': {'config': ADAM},
  'own optimizer': {
    'config': safl_tf.LocalConfig(
      local_epochs=2,
      batch_size=8,
      optimizer=keras.optimizers.RMSprop(0.003),
    )
  },
  'robust': {
    'algorithm': dataclasses.replace(
      safl_tf.build_safl(), aggregate=safl_tf.aggregate.krum()
    )
  },
  'own rule': {
    'algorithm': dataclasses.replace(
      safl_tf.build_safl(),
      gate=safl_tf.gate.accuracy_gap(nu=0.2),
    )
  },
  'files': {'client_store': 'mmap'},
  'XLA': {'jit_compile': 'true'},
  'shared': {'init': 'shared'},
}


@pytest.mark.parametrize('name', marks.some(OPTIONS, ['hold-out', 'files']))
def test_option(ray, name):
  check(ray, **OPTIONS[name])


@pytest.mark.parametrize('chunk', marks.some([None, 1, 3], [3]))
def test_stacked(ray, chunk):
  """A stack makes workers `vectorized`, whatever is in it."""
  executor = dataclasses.replace(ray, chunk=chunk)
  check(executor, base='vectorized', stack=2)


def test_several_inputs(ray):
  def model():
    left, right = keras.Input((3,), name='a'), keras.Input((5,), name='b')
    both = keras.layers.Concatenate()([left, right])
    outputs = keras.layers.Dense(tiny.CLASSES)(both)
    return keras.Model({'a': left, 'b': right}, outputs)

  x, y = tiny.blobs(60)
  parts = np.split(np.arange(60), 6)
  clients = client_data.ClientData.from_arrays(
    {'a': x[:, :3], 'b': x[:, 3:]}, y, parts
  )
  check(ray, model=model, clients=clients)


@pytest.mark.slow
def test_lenet(ray):
  """The fold and XLA, as by default."""
  rng = np.random.default_rng(0)
  x = rng.integers(0, 256, (88, 28, 28, 1), np.uint8)
  clients = tiny.clients(tiny_rounds.SIZES, x, rng.integers(0, 10, 88))
  options = {'model': lenet5.lenet5, 'clients': clients, 'jit_compile': 'auto'}
  check(ray, **options)


@pytest.mark.parametrize('first', marks.some(['threads', 'ray'], ['ray']))
def test_resumes_runs_of_others(ray, tmp_path, first):
  """A run that changes its executor leaves the files of one that does not."""

  def train(folder, rounds, executor):
    return safl_tf.train(
      tiny.dense,
      tiny_rounds.CLIENTS,
      safl_tf.build_scaffold_safl(),
      test_data=tiny.blobs(50, seed=1),
      rounds=rounds,
      config=tiny_rounds.CONFIG,
      executor=executor,
      output_dir=tmp_path / folder,
      progress=False,
    )

  expected = train('whole', 4, 'threads')
  executors = ('threads', ray) if first == 'threads' else (ray, 'threads')
  train('parts', 2, executors[0])
  result = train('parts', 4, executors[1])
  assert bits(result.state) == bits(expected.state)
  rows = metrics_log.read_csv(tmp_path / 'parts' / 'metrics.csv')
  others = metrics_log.read_csv(tmp_path / 'whole' / 'metrics.csv')
  for row, other in zip(rows, others, strict=True):
    for name in set(row) - set(metrics_log.MEASURED):
      assert row[name] == other[name], name
    on_ray = (row['round'] <= 2) == (first == 'ray')
    assert (row['workers'], row['workers_lost']) == (
      (2, 0) if on_ray else (None, None)
    )
    assert (row['bytes_to_workers'] is not None) == on_ray


def test_bytes(ray):
  """Data travel once, z̄ once a round, and what a client needs each time."""
  trainer = tiny_rounds.make(executor=dataclasses.replace(ray, chunk=1))
  state = trainer.initialize(0)
  model = 4 * trainer.model.size
  state, first = trainer.next(state)
  state, second = trainer.next(state)
  clients = len(tiny_rounds.SIZES)
  data = tiny_rounds.CLIENTS.x.nbytes + tiny_rounds.CLIENTS.y.nbytes
  assert first.workers.bytes_sent > data + clients * model
  assert second.workers.bytes_sent == (clients + 1) * model
  # Losses and the like are a few numbers.
  assert 0 < second.workers.bytes_received - clients * model < 100 * clients
  averaged = tiny_rounds.make(
    executor=dataclasses.replace(ray, chunk=1),
    algorithm=safl_tf.build_fed_avg(),
  )
  state, _ = averaged.next(averaged.initialize(0))
  _, metrics = averaged.next(state)
  assert metrics.workers.bytes_sent == model  # z̄ alone
