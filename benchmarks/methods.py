"""Methods to run a federated round.

A method takes a workload and yields the seconds of every round, without end;
the first one includes compilation.
"""

import itertools
import math
import time
from collections.abc import Callable, Iterator

import keras
import numpy as np
import tensorflow as tf

import safl_tf
from benchmarks import workloads
from safl_tf.core import algorithm as algorithm_lib
from safl_tf.core import process

Method = Callable[[workloads.Workload], Iterator[float]]


def naive(work: workloads.Workload) -> Iterator[float]:
  """Calls set_weights, fit and get_weights for each client."""
  clients = work.clients()
  model = work.model_fn()
  model.compile(
    keras.optimizers.SGD(work.config.learning_rate * work.config.batch_size),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
  )
  z_bar = model.get_weights()
  while True:
    start = time.perf_counter()
    models = []
    for k in range(work.num_clients):
      rows = clients.indices(k)
      model.set_weights(z_bar)
      model.fit(
        clients.x[rows],
        clients.y[rows],
        batch_size=work.config.batch_size,
        epochs=work.config.local_epochs,
        verbose=0,
      )
      models.append(model.get_weights())
    z_bar = [np.mean(tensors, axis=0) for tensors in zip(*models, strict=True)]
    yield time.perf_counter() - start


def one_step(work: workloads.Workload) -> Iterator[float]:
  """SAFL by hand: a compiled training step, and NumPy for the rest."""
  clients = work.clients()
  model = work.model_fn()
  optimizer = keras.optimizers.SGD(work.config.learning_rate)
  optimizer.build(model.trainable_variables)
  x, y = tf.constant(clients.x), tf.constant(clients.y)

  @tf.function
  def step(rows: tf.Tensor) -> None:
    with tf.GradientTape() as tape:
      logits = model(tf.gather(x, rows), training=True)
      loss = tf.reduce_sum(
        tf.nn.sparse_softmax_cross_entropy_with_logits(
          tf.gather(y, rows), logits
        )
      )
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply(gradients, model.trainable_variables)

  rng = np.random.default_rng(0)
  z_bar = model.get_weights()
  models = [z_bar] * work.num_clients
  B = work.config.batch_size

  def mixed(z_bar: np.ndarray, z: np.ndarray, p: float) -> np.ndarray:
    u = np.where(rng.random(z.shape, np.float32) < p, 0.3, 1)
    return u * z_bar + (1 - u) * z

  for t in itertools.count(1):
    start = time.perf_counter()
    p = math.exp(-t / 80)
    for k, z in enumerate(models):
      pairs = zip(z_bar, z, strict=True)
      model.set_weights([mixed(*pair, p) for pair in pairs])
      for _ in range(work.config.local_epochs):
        order = rng.permutation(clients.indices(k))
        for i in range(0, len(order), B):
          step(tf.constant(order[i : i + B]))
      models[k] = model.get_weights()
    z_bar = [np.mean(tensors, axis=0) for tensors in zip(*models, strict=True)]
    yield time.perf_counter() - start


def safl(
  executor: str,
  algorithm: algorithm_lib.Algorithm | None = None,
  jit_compile: str = 'auto',
) -> Method:
  """Returns the method of this package; SAFL by default."""

  def method(work: workloads.Workload) -> Iterator[float]:
    trainer = process.FederatedProcess(
      work.model_fn,
      work.clients(),
      algorithm or safl_tf.build_safl(),
      work.config,
      executor=executor,
      jit_compile=jit_compile,
    )
    state = trainer.initialize(0)
    while True:
      start = time.perf_counter()
      state, _ = trainer.next(state)
      yield time.perf_counter() - start

  return method


def gemm(work: workloads.Workload) -> Iterator[float]:
  """Yields seconds per GFLOP of large matrix products, NumPy or XLA."""
  del work
  n = 2048
  a = np.random.default_rng(0).random((n, n), np.float32)
  tensor = tf.constant(a)
  compiled = tf.function(tf.matmul, jit_compile=True)
  products = [lambda: a @ a, lambda: compiled(tensor, tensor).numpy()]
  while True:
    best = np.inf
    for product in 10 * products:
      start = time.perf_counter()
      product()
      best = min(best, (time.perf_counter() - start) * 1e9 / (2 * n**3))
    yield best


FIT, STEP = 'Keras fit, client by client', 'one-step tf.function'
SAFL, EXTENDED = 'safl_tf, threads', 'safl_tf, threads, Extended SAFL'
GEMM = 'matrix products'
METHODS: dict[str, Method] = {
  FIT: naive,
  STEP: one_step,
  'safl_tf, serial': safl('serial'),
  SAFL: safl('threads'),
  'safl_tf, vectorized': safl('vectorized'),
  EXTENDED: safl('threads', safl_tf.build_extended_safl(nu=1e9)),
  GEMM: gemm,
}
