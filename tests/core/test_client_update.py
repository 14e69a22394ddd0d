import dataclasses
import math
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

import safl_tf
from safl_tf.core import (
  batching,
  client_config,
  client_update,
  cohort,
  flat_model,
  seeds,
  task,
  task_resolution,
)
from safl_tf.core.executors import base
from safl_tf.rules import gate
from tests import tiny

layers = keras.layers
X, Y = tiny.blobs(72)
SIZES = (20, 13, 31, 7, 1)
CONFIG = client_config.LocalConfig(
  local_epochs=2, batch_size=8, learning_rate=0.02
)
# Compiled by XLA or not, and examples at a time: pieces of 3, 3 and 2 of 8.
WAYS = {
  'graph': {},
  'xla': {'jit': True},
  'micro-batches': {'jit': True, 'micro_batch': 3},
}
EACH_WAY = pytest.mark.parametrize('way', WAYS.values(), ids=WAYS)
JIT = pytest.mark.parametrize('jit', [False, True], ids=['graph', 'xla'])
# Float32 rounding through a dozen steps, against float64.
CLOSE = {'rtol': 1e-4, 'atol': 1e-5}


def linear(classes=tiny.CLASSES, before=(), **options):
  return keras.Sequential(
    [
      keras.Input((tiny.FEATURES,)),
      *before,
      layers.Dense(classes, **options),
    ]
  )


class Client:
  """A compiled local update and what is needed to call it."""

  def __init__(
    self,
    make,
    jit=False,
    algorithm=None,
    config=CONFIG,
    x=X,
    y=Y,
    loss=None,
    micro_batch=None,
  ):
    self.config = config
    self.flat = flat_model.FlatModel(make, x[:2])
    template = self.flat.template
    self.learned = task_resolution.resolve(
      task.Options(loss), task.Options(), template, template(x[:2]), y, None
    )
    update = client_update.ClientUpdate(
      self.flat,
      self.learned,
      algorithm or safl_tf.build_fed_avg(),
      config,
      (x, y, None),
      micro_batch=micro_batch,
    )
    self.update = base.CompiledRound(
      update,
      base.StepRunner(trim_padding=not jit),
      update.signature(),
      jit,
    )

  def init(self, k=1):
    return self.flat.init(seeds.pair(0, seeds.Role.INIT, k))

  def plan(self, size, seed=0, first=0):
    rng = seeds.generator(seed, seeds.Role.BATCHES)
    rows = np.arange(first, first + size)
    return batching.plan_batches(rows, self.config, self.config.steps(31), rng)

  def task(self, plan, z, z_bar=None, t=1, k=0):
    roles = (seeds.Role.MIX, seeds.Role.GATE, seeds.Role.MODEL)
    return cohort.ClientInput(
      received={'z': z if z_bar is None else z_bar},
      has_global=z_bar is not None,
      kept={'z': z},
      seeds=np.stack([seeds.pair(0, role, t, k) for role in roles]),
      clock=float(t),
      plan=plan,
      measured=self.measured(np.unique(plan.examples[: plan.num_steps])),
    )

  def measured(self, rows):
    return batching.plan_measuring(rows, self.config, 4)

  def run(self, plan, z, z_bar=None, t=1, k=0):
    return self.update(self.task(plan, z, z_bar, t, k))


def numpy_sgd(z, plan, rate, reduction='sum', l2=0.0):
  """The same training of `tiny.dense`, in float64 and by hand."""
  shapes = [(8, 5), (5,), (5, 3), (3,)]
  ends = np.cumsum([math.prod(shape) for shape in shapes])
  flat = np.split(z.astype(np.float64), ends[:-1])
  w1, b1, w2, b2 = (v.reshape(s) for v, s in zip(flat, shapes, strict=True))
  losses = []
  for i in range(plan.num_steps):
    rows = plan.examples[i, : plan.counts[i]]
    x, y = X[rows].astype(np.float64), Y[rows]
    hidden = np.tanh(x @ w1 + b1)
    logits = hidden @ w2 + b2
    e = np.exp(logits - logits.max(axis=1, keepdims=True))
    y_hat = e / e.sum(axis=1, keepdims=True)
    losses.extend(-np.log(y_hat[np.arange(len(y)), y]))
    slope = y_hat - np.eye(3)[y]
    weight = 1.0 if reduction == 'sum' else 1 / len(y)
    back = slope @ w2.T * (1 - hidden**2)
    count = len(y) if reduction == 'sum' else 1
    gradients = [
      weight * x.T @ back + 2 * l2 * count * w1,
      weight * back.sum(axis=0),
      weight * hidden.T @ slope,
      weight * slope.sum(axis=0),
    ]
    for v, gradient in zip((w1, b1, w2, b2), gradients, strict=True):
      v -= rate * gradient
  return np.concatenate([v.ravel() for v in (w1, b1, w2, b2)]), np.mean(losses)


@pytest.fixture(scope='module', params=WAYS.values(), ids=WAYS)
def dense(request):
  return Client(tiny.dense, **request.param)


@pytest.mark.parametrize('size', SIZES)
def test_equals_sgd_in_numpy(dense, size):
  plan, z = dense.plan(size), dense.init()
  update = dense.run(plan, z)
  expected, loss = numpy_sgd(z, plan, 0.02)
  np.testing.assert_allclose(update.kept['z'], expected, **CLOSE)
  assert update.train_loss == pytest.approx(loss, rel=1e-5)
  assert update.finite
  assert not np.allclose(update.kept['z'], z, **CLOSE)


def test_starts_from_the_global_model(dense):
  plan, z, z_bar = dense.plan(20), dense.init(1), dense.init(2)
  update = dense.run(plan, z, z_bar)
  np.testing.assert_allclose(
    update.kept['z'], numpy_sgd(z_bar, plan, 0.02)[0], **CLOSE
  )
  assert update.p == update.kept_local == 0


def test_padding_does_not_matter(dense):
  """What pads a short batch, and a short plan, is never seen."""
  plan, z = dense.plan(13), dense.init()
  other = plan._replace(examples=plan.examples.copy())
  for i, count in enumerate(plan.counts):
    other.examples[i, count:] = 60
  a, b = dense.run(plan, z), dense.run(other, z)
  assert a.kept['z'].tobytes() == b.kept['z'].tobytes()
  assert a.train_loss == b.train_loss


def test_traced_once(dense):
  for size in SIZES:
    dense.run(dense.plan(size), dense.init())
  assert dense.update.num_traces == 1


def test_a_model_that_is_not_finite_is_reported(dense):
  z = dense.init()
  z[0] = np.inf
  assert not dense.run(dense.plan(20), z).finite


@EACH_WAY
def test_mean_reduction(way):
  config = dataclasses.replace(CONFIG, loss_reduction='mean', learning_rate=0.2)
  client = Client(tiny.dense, config=config, **way)
  plan, z = client.plan(13), client.init()
  update = client.run(plan, z)
  expected, loss = numpy_sgd(z, plan, 0.2, 'mean')
  np.testing.assert_allclose(update.kept['z'], expected, **CLOSE)
  assert update.train_loss == pytest.approx(loss, rel=1e-5)


def test_mean_of_full_batches_is_the_sum_at_a_larger_rate():
  config = dataclasses.replace(
    CONFIG, loss_reduction='mean', learning_rate=0.02 * 8
  )
  by_sum, by_mean = Client(tiny.dense), Client(tiny.dense, config=config)
  plan, z = by_sum.plan(24), by_sum.init()
  np.testing.assert_allclose(
    by_sum.run(plan, z).kept['z'], by_mean.run(plan, z).kept['z'], **CLOSE
  )


@EACH_WAY
@pytest.mark.parametrize('reduction', ['sum', 'mean'])
def test_regularizers_count(reduction, way):
  """In a sum of losses each example brings the layers' own losses with it."""

  def regularized():
    model = tiny.dense()
    model.layers[0].kernel_regularizer = keras.regularizers.L2(0.05)
    return keras.Sequential.from_config(model.get_config())

  config = dataclasses.replace(CONFIG, loss_reduction=reduction)
  client = Client(regularized, config=config, **way)
  plan, z = client.plan(13), client.init()
  update = client.run(plan, z)
  expected, loss = numpy_sgd(z, plan, 0.02, reduction, l2=0.05)
  np.testing.assert_allclose(update.kept['z'], expected, **CLOSE)
  plain, _ = numpy_sgd(z, plan, 0.02, reduction)
  assert np.abs(plain - expected).max() > 1e-3  # it is not lost in rounding
  assert update.train_loss == pytest.approx(loss, rel=1e-5)


@pytest.mark.parametrize(
  'loss, expected', [('paper', 3.2508), ('categorical', 2.3026)]
)
@pytest.mark.parametrize('softmax', [False, True])
def test_loss_of_uniform_predictions(loss, expected, softmax):
  config = dataclasses.replace(CONFIG, learning_rate=1e-9)
  activation = 'softmax' if softmax else None
  make = lambda: linear(10, activation=activation)
  client = Client(make, config=config, loss=loss)
  assert client.learned.options.from_logits is not softmax
  update = client.run(client.plan(20), np.zeros(90, np.float32))
  assert update.train_loss == pytest.approx(expected, abs=5e-5)


def moving_mean(plan, momentum, padded=False):
  mean = np.zeros(tiny.FEATURES)
  for i in range(plan.num_steps):
    rows = plan.examples[i, : None if padded else plan.counts[i]]
    mean = momentum * mean + (1 - momentum) * X[rows].mean(axis=0)
  return mean


@JIT
@pytest.mark.parametrize('size', [13, 16])
def test_moving_statistics(jit, size):
  """Exact without XLA; with it, what pads a short batch is seen, too."""
  config = dataclasses.replace(CONFIG, learning_rate=1e-9)
  make = lambda: linear(before=[layers.BatchNormalization(momentum=0.8)])
  client = Client(make, jit, config=config)
  plan = client.plan(size)
  update = client.run(plan, client.init())
  model = client.flat.to_model(update.kept['z'])
  np.testing.assert_allclose(
    model.layers[0].moving_mean, moving_mean(plan, 0.8, padded=jit), **CLOSE
  )
  exact = np.allclose(moving_mean(plan, 0.8), moving_mean(plan, 0.8, True))
  assert exact == (size == 16)


def test_dropout_differs_by_round_and_client_and_is_reproducible():
  client = Client(lambda: linear(before=[layers.Dropout(0.5)]))
  plan, z = client.plan(20), client.init()
  first = client.run(plan, z, t=1, k=0).kept['z']
  assert client.run(plan, z, t=1, k=0).kept['z'].tobytes() == first.tobytes()
  assert not np.allclose(
    client.run(plan, z, t=2, k=0).kept['z'], first, **CLOSE
  )
  assert not np.allclose(
    client.run(plan, z, t=1, k=1).kept['z'], first, **CLOSE
  )


def test_dropout_differs_by_step():
  """Two equal batches of one example drop different features."""
  config = client_config.LocalConfig(
    local_epochs=2, batch_size=1, learning_rate=0.1
  )
  x = np.ones((1, tiny.FEATURES), np.float32)
  client = Client(
    lambda: linear(before=[layers.Dropout(0.5)], use_bias=False),
    config=config,
    x=np.repeat(x, 2, axis=0),
    y=np.zeros(2, np.int32),
  )
  kernel = (
    client.run(client.plan(1), np.zeros(24, np.float32)).kept['z'].reshape(8, 3)
  )
  # A feature was seen in neither, one or both steps.
  assert len(np.unique(kernel[:, 0])) > 2


def accuracies():
  """A gate that tells h(z_bar) as delta and h(z) as q."""
  decide = lambda seed, t, metrics: gate.Decision(
    tf.constant(True),
    q=metrics['accuracy'],
    delta=metrics['global_accuracy'],
  )
  return dataclasses.replace(
    safl_tf.build_fed_avg(),
    gate=gate.Gate(decide, ('global_accuracy', 'accuracy')),
  )


@pytest.fixture(scope='module', params=WAYS.values(), ids=WAYS)
def gated(request):
  return Client(tiny.dense, algorithm=accuracies(), **request.param)


@pytest.mark.parametrize('size', SIZES)
def test_h_is_the_accuracy_on_the_clients_data(gated, size):
  first = 10  # not the same rows for every size
  z, z_bar = gated.init(1), gated.init(2)
  update = gated.run(gated.plan(size, first=first), z, z_bar)
  rows = slice(first, first + size)
  for h, model in (update.delta, z_bar), (update.q, update.kept['z']):
    outputs = gated.flat.to_model(model)(X[rows]).numpy()
    expected = np.mean(outputs.argmax(axis=1) == Y[rows])
    assert h == pytest.approx(expected, abs=1e-6)


def test_h_is_measured_on_the_batches_for_it(gated):
  z, z_bar, rows = gated.init(1), gated.init(2), np.arange(40, 57)
  task = gated.task(gated.plan(20), z, z_bar)
  update = gated.update(task._replace(measured=gated.measured(rows)))
  assert update.kept['z'].tobytes() == gated.update(task).kept['z'].tobytes()
  for h, model in (update.delta, z_bar), (update.q, update.kept['z']):
    outputs = gated.flat.to_model(model)(X[rows]).numpy()
    expected = np.mean(outputs.argmax(axis=1) == Y[rows])
    assert h == pytest.approx(expected, abs=1e-6)


def test_sizes_do_not_compile_anew():
  client = Client(tiny.dense, True, accuracies())
  z = client.init()

  def seconds(size):
    start = time.perf_counter()
    client.run(client.plan(size), z)
    return time.perf_counter() - start

  first = seconds(31)
  assert sum(map(seconds, (1, 7, 13, 17, 20, 25))) < first


def test_first_round_has_no_global_model(gated):
  z, plan = gated.init(), gated.plan(20)
  nothing = np.full_like(z, np.nan)  # what z_bar is then doesn't matter
  task = gated.task(plan, z)._replace(received={'z': nothing})
  update = gated.update(task)
  np.testing.assert_allclose(
    update.kept['z'], numpy_sgd(z, plan, 0.02)[0], **CLOSE
  )
  assert update.sent and update.q == 1 and update.delta == 0
  assert update.kept_local == 1


def test_mixing_comes_before_training_and_the_gate_after():
  algorithm = safl_tf.build_extended_safl(epsilon=0.3, nu=1e-9)
  client = Client(tiny.dense, algorithm=algorithm)
  plan, z, z_bar = client.plan(20), client.init(1), client.init(2)
  task = client.task(plan, z, z_bar, t=56)
  update = client.run(plan, z, z_bar, t=56)
  mixed = algorithm.mix(tf.constant(task.seeds[0]), 56.0, z_bar, z)
  np.testing.assert_allclose(
    update.kept['z'], numpy_sgd(mixed.w.numpy(), plan, 0.02)[0], **CLOSE
  )
  assert update.p == pytest.approx(math.exp(-56 / 80))
  assert update.kept_local == mixed.kept_local
  assert 0.3 < update.kept_local < 0.7
  assert update.delta > 0 and update.q < 1e-6 and not update.sent
  assert client.run(plan, z, t=56).sent  # nothing to compare with yet


@pytest.mark.parametrize('name', ['momentum', 'adam'])
def test_slots_are_fresh_each_time(name):
  """Against Keras: a new optimizer for each participation."""
  config = dataclasses.replace(CONFIG, optimizer=name, learning_rate=0.01)
  client = Client(tiny.dense, config=config)
  plan, z = client.plan(13), client.init()
  update = client.run(plan, z)
  assert client.run(plan, z).kept['z'].tobytes() == update.kept['z'].tobytes()
  model = client.flat.to_model(z)
  if name == 'adam':
    optimizer = keras.optimizers.Adam(0.01)
  else:
    optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
  for i in range(plan.num_steps):
    rows = plan.examples[i, : plan.counts[i]]
    with tf.GradientTape() as tape:
      loss = tf.nn.sparse_softmax_cross_entropy_with_logits(
        Y[rows], model(X[rows])
      )
    gradients = tape.gradient(loss, model.trainable_variables)  # of the sum
    optimizer.apply(gradients, model.trainable_variables)
  np.testing.assert_allclose(update.kept['z'], client.flat.read(model), **CLOSE)


def test_a_keras_optimizer():
  config = dataclasses.replace(
    CONFIG,
    optimizer=keras.optimizers.SGD(0.02),
    learning_rate=client_config.LocalConfig.learning_rate,
  )
  client = Client(tiny.dense, config=config)
  plan, z = client.plan(13), client.init()
  np.testing.assert_allclose(
    client.run(plan, z).kept['z'], numpy_sgd(z, plan, 0.02)[0], **CLOSE
  )


@pytest.fixture
def policy(request):
  """Sets Keras's precision for one test."""
  before = keras.config.dtype_policy()
  keras.config.set_dtype_policy(request.param)
  yield request.param
  keras.config.set_dtype_policy(before)


@pytest.mark.parametrize(
  'policy, dtype, tolerance',
  [
    ('float64', np.float64, 1e-5),
    ('mixed_float16', np.float32, 5e-3),
    ('mixed_bfloat16', np.float32, 3e-2),
  ],
  indirect=['policy'],
)
def test_precisions(policy, dtype, tolerance):
  client = Client(tiny.dense)
  assert client.flat.template.dtype_policy.name == policy
  plan, z = client.plan(13), client.init()
  update = client.run(plan, z)
  assert update.kept['z'].dtype == dtype
  expected, _ = numpy_sgd(z, plan, 0.02)
  np.testing.assert_allclose(update.kept['z'], expected, atol=tolerance)


@pytest.mark.parametrize('policy', ['mixed_float16'], indirect=True)
def test_small_gradients_do_not_vanish(policy):
  """exp(-18) is less than float16 can hold, but not 1024 times that."""
  config = client_config.LocalConfig(
    local_epochs=1, batch_size=20, learning_rate=1e6
  )
  client = Client(linear, config=config, y=np.zeros(72, np.int32))
  z = np.zeros(27, np.float32)
  z[24:] = [18, 0, 0]
  update = client.run(client.plan(20), z)
  step = 1e6 * 20 * math.exp(-18)
  np.testing.assert_allclose(update.kept['z'][25:], [-step, -step], rtol=0.01)


def test_constraints_hold_after_training():
  client = Client(lambda: linear(kernel_constraint='non_neg'))
  update = client.run(client.plan(20), client.init())
  assert (update.kept['z'][:24] >= 0).all() and (
    update.kept['z'][:24] > 0
  ).any()
