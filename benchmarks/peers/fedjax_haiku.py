"""FedJAX: its federated averaging of a Haiku model.

  pip install -r benchmarks/peers/requirements/fedjax_haiku.txt
  python benchmarks/peers/fedjax_haiku.py work.npz

The algorithm is FedJAX's own, with its default `jit` backend: one compiled step
per batch, the clients one after another. FedJAX averages the loss over a batch,
so the learning rate is multiplied by the batch size. The batches come from its
client datasets, in the order of the plan, as shuffling is off.
"""

import importlib.metadata
import os

os.environ.setdefault('JAX_PLATFORMS', 'cpu')

import common
import fedjax
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
from fedjax.algorithms import fed_avg


def average_pool(x: jax.Array) -> jax.Array:
  """Averages 2 x 2 pixels like `hk.AvgPool`, but faster on a CPU."""
  batch, height, width, channels = x.shape
  x = x.reshape(batch, height // 2, 2, width // 2, 2, channels)
  return x.mean((2, 4))


def dense(batch: dict[str, jax.Array]) -> jax.Array:
  """Dense layers with tanh, from pixels to logits."""
  network = hk.Sequential(
    [
      hk.Flatten(),
      hk.Linear(200, name='dense_1'),
      jnp.tanh,
      hk.Linear(200, name='dense_2'),
      jnp.tanh,
      hk.Linear(10, name='dense_3'),
    ]
  )
  return network(batch['x'].astype(jnp.float32) / 255)


def lenet5(batch: dict[str, jax.Array]) -> jax.Array:
  """LeNet-5 with tanh, from pixels to logits."""
  network = hk.Sequential(
    [
      hk.Conv2D(6, 5, padding='VALID', name='conv_1'),
      jnp.tanh,
      average_pool,
      hk.Conv2D(16, 5, padding='VALID', name='conv_2'),
      jnp.tanh,
      average_pool,
      hk.Flatten(),
      hk.Linear(120, name='dense_1'),
      jnp.tanh,
      hk.Linear(84, name='dense_2'),
      jnp.tanh,
      hk.Linear(10, name='dense_3'),
    ]
  )
  return network(batch['x'].astype(jnp.float32) / 255)


def build_model(work: common.Work) -> fedjax.Model:
  """Builds the FedJAX model."""
  sample = {
    'x': np.zeros((1, 28, 28, 1), np.uint8),
    'y': np.zeros((1,), np.int32),
  }
  return fedjax.create_model_from_haiku(
    hk.transform(dense if work.dense else lenet5),
    sample,
    lambda batch, logits: fedjax.metrics.unreduced_cross_entropy_loss(
      batch['y'], logits
    ),
    {'loss': fedjax.metrics.CrossEntropyLoss()},
  )


def initial_params(work: common.Work) -> fedjax.Params:
  """Returns the initial weights under Haiku's names."""
  layers = [] if work.dense else ['conv_1', 'conv_2']
  layers += ['dense_1', 'dense_2', 'dense_3']
  return {
    name: {
      'w': jnp.asarray(work.weights[2 * i]),
      'b': jnp.asarray(work.weights[2 * i + 1]),
    }
    for i, name in enumerate(layers)
  }


def client_dataset(
  work: common.Work, examples: np.ndarray
) -> fedjax.ClientDataset:
  """Returns a client's examples of a round, in training order."""
  rows = examples.reshape(-1)
  return fedjax.ClientDataset({'x': work.x[rows], 'y': work.y[rows]})


def run(work: common.Work) -> tuple[str, str, list[float], float]:
  """Trains and evaluates; see `common.main`."""
  rounds, num_clients, _, batch_size = work.plan.shape
  model = build_model(work)
  algorithm = fed_avg.federated_averaging(
    fedjax.model_grad(model),
    fedjax.optimizers.sgd(work.learning_rate * batch_size),
    fedjax.optimizers.sgd(1.0),
    fedjax.ShuffleRepeatBatchHParams(batch_size, skip_shuffle=True),
  )
  state = algorithm.init(initial_params(work))
  rngs = jax.random.split(jax.random.PRNGKey(0), num_clients)
  stopwatch = common.Stopwatch()
  stopwatch()
  for t in range(rounds):
    clients = [
      (k, client_dataset(work, work.plan[t, k]), rngs[k])
      for k in range(num_clients)
    ]
    state, _ = algorithm.apply(state, clients)
    jax.block_until_ready(state.params)
    stopwatch()
  test = fedjax.ClientDataset({'x': work.x_test, 'y': work.y_test})
  metrics = fedjax.evaluate_model(
    model, state.params, test.padded_batch(batch_size=len(work.y_test))
  )
  loss = float(metrics['loss'])
  version = importlib.metadata.version('fedjax')
  return 'FedJAX', version, stopwatch.seconds, loss


if __name__ == '__main__':
  common.main(run)
