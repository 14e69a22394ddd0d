"""Flower, Keras clients: FedAvg in the Ray simulation.

  pip install -r benchmarks/peers/requirements/flower_keras.txt
  python benchmarks/peers/flower_keras.py work.npz

Two actors with one core each process the clients from a queue. A client sets
the received weights and calls `fit` on its batches of the round. Flower's own
example rebuilds the model for every message and uses the default `compile`;
here an actor keeps its model, and Keras compiles it with XLA and runs all
batches in one call, which takes about a third of the time. The first round
includes the start of Ray and of the actors.
"""

import functools
import os
import sys

os.environ.setdefault('FLWR_LOG_LEVEL', 'ERROR')
os.environ.setdefault('FLWR_TELEMETRY_ENABLED', '0')
os.environ.setdefault('KERAS_BACKEND', 'tensorflow')
os.environ.setdefault('RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO', '0')
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import common
import flwr
import keras
import models_keras
import tensorflow as tf
from flwr import app, clientapp, serverapp, simulation
from flwr.serverapp import strategy

ACTORS = 2

load_work = functools.cache(common.load)
client_app = clientapp.ClientApp()


@functools.cache
def build_model(dense: bool, learning_rate: float, steps: int) -> keras.Model:
  """Builds the compiled model, once per process, on one core."""
  tf.config.threading.set_intra_op_parallelism_threads(1)
  model = models_keras.build(keras, dense)
  model.compile(
    optimizer=keras.optimizers.SGD(learning_rate),
    loss=keras.losses.SparseCategoricalCrossentropy(
      from_logits=True, reduction='sum'
    ),
    jit_compile=True,
    steps_per_execution=steps,
  )
  return model


@client_app.train()
def train(message: app.Message, context: app.Context) -> app.Message:
  """Trains a client for a round, in an actor."""
  config = message.content['config']
  work = load_work(config['work'])
  t = config['server-round'] - 1
  examples = work.plan[t, context.node_config['partition-id']]
  rows = examples.reshape(-1)
  model = build_model(work.dense, work.learning_rate, len(examples))
  model.set_weights(message.content['arrays'].to_numpy_ndarrays())
  model.fit(
    work.x[rows],
    work.y[rows],
    batch_size=examples.shape[1],
    shuffle=False,
    verbose=0,
  )
  content = app.RecordDict(
    {
      'arrays': app.ArrayRecord(model.get_weights()),
      'metrics': app.MetricRecord({'num-examples': len(rows)}),
    }
  )
  return app.Message(content, reply_to=message)


def run(work: common.Work) -> tuple[str, str, list[float], float]:
  """Trains and evaluates; see `common.main`."""
  rounds, num_clients = work.plan.shape[:2]
  stopwatch = common.Stopwatch()
  results: list[strategy.Result] = []
  server_app = serverapp.ServerApp()

  @server_app.main()
  def serve(grid: serverapp.Grid, context: app.Context) -> None:
    del context
    fed_avg = strategy.FedAvg(
      fraction_evaluate=0.0,
      min_train_nodes=num_clients,
      min_available_nodes=num_clients,
    )
    results.append(
      fed_avg.start(
        grid,
        app.ArrayRecord(work.weights),
        rounds,
        train_config=app.ConfigRecord({'work': os.path.abspath(sys.argv[1])}),
        # Called before the first round and after each.
        evaluate_fn=lambda server_round, arrays: stopwatch(),
      )
    )

  simulation.run_simulation(
    server_app,
    client_app,
    num_clients,
    backend_config={
      'init_args': {'num_cpus': ACTORS},
      'client_resources': {'num_cpus': 1, 'num_gpus': 0.0},
    },
  )
  model = build_model(work.dense, work.learning_rate, 1)
  model.set_weights(results[0].arrays.to_numpy_ndarrays())
  loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)(
    work.y_test, model.predict(work.x_test, verbose=0)
  )
  return 'Flower, Keras', flwr.__version__, stopwatch.seconds, float(loss)


if __name__ == '__main__':
  # Imported by name, so that the actors import this file and keep its caches;
  # Ray would send a new copy of functions of `__main__` with every message.
  import flower_keras

  common.main(flower_keras.run)
