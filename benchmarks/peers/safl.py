"""safl_tf on the same workload.

python -m benchmarks.peers.safl work.npz
"""

import os

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import keras
import numpy as np

from benchmarks.peers import common
from safl_tf import version
from safl_tf.algorithms import fed_avg
from safl_tf.core import process
from safl_tf.data import client_data, examples
from safl_tf.models import lenet5
from safl_tf.training import evaluation


def build_model(dense: bool) -> keras.Model:
  """Builds LeNet-5, or a dense network."""
  if not dense:
    return lenet5.lenet5()
  return keras.Sequential(
    [
      keras.Input((28, 28, 1), dtype='uint8'),
      keras.layers.Rescaling(1 / 255),
      keras.layers.Flatten(),
      keras.layers.Dense(200, activation='tanh'),
      keras.layers.Dense(200, activation='tanh'),
      keras.layers.Dense(10),
    ]
  )


def make_process(
  x: np.ndarray, y: np.ndarray, parts: np.ndarray, weights: list[np.ndarray]
) -> process.FederatedProcess:
  """Builds FedAvg from shared weights; seed 0 draws the planned batches."""
  model = build_model(dense=weights[0].ndim == 2)
  model.set_weights(weights)
  clients = client_data.ClientData.from_arrays(x, y, parts, num_classes=10)
  return process.FederatedProcess(
    model, clients, fed_avg.build_fed_avg(), init='shared'
  )


def test_loss(
  trainer: process.FederatedProcess,
  state: process.FederatedState,
  x: np.ndarray,
  y: np.ndarray,
) -> float:
  """Returns the mean cross-entropy of the global model."""
  data = examples.Examples(x, y)
  scores = evaluation.StateEvaluator(trainer, state, data)(state)
  assert scores is not None
  return scores.loss


def run(work: common.Work) -> tuple[str, str, list[float], float]:
  """Trains and evaluates; see `common.main`."""
  trainer = make_process(work.x, work.y, work.parts, work.weights)
  state = trainer.initialize(0)
  stopwatch = common.Stopwatch()
  stopwatch()
  for _ in work.plan:
    state, _ = trainer.next(state)
    stopwatch()
  loss = test_loss(trainer, state, work.x_test, work.y_test)
  return 'safl_tf', version.__version__, stopwatch.seconds, loss


if __name__ == '__main__':
  common.main(run)
