"""TensorFlow Federated: its weighted federated averaging.

  pip install -r benchmarks/peers/requirements/tff_keras.txt
  pip install --no-deps tensorflow-federated==0.87.0
  python benchmarks/peers/tff_keras.py work.npz

The learning process is TFF's own, in its default local runtime. The elements of
a client's dataset are the planned batches of a round.
"""

import os

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import common
import models_keras
import numpy as np
import psutil
import tensorflow as tf
import tensorflow_federated as tff


def client_dataset(work: common.Work, examples: np.ndarray) -> tf.data.Dataset:
  """Returns a client's batches of a round."""
  return tf.data.Dataset.from_tensor_slices(
    (work.x[examples], work.y[examples])
  )


def train(work: common.Work) -> tuple[list[float], float]:
  """Returns the seconds of each round and the test loss."""
  rounds, num_clients = work.plan.shape[:2]
  spec = client_dataset(work, work.plan[0, 0]).element_spec
  model = tff.learning.models.functional_model_from_keras(
    lambda: models_keras.build(tf.keras, work.dense),
    tf.keras.losses.SparseCategoricalCrossentropy(
      from_logits=True, reduction=tf.keras.losses.Reduction.SUM
    ),
    spec,
  )
  process = tff.learning.algorithms.build_weighted_fed_avg(
    model,
    tff.learning.optimizers.build_sgdm(work.learning_rate),
    tff.learning.optimizers.build_sgdm(1.0),
  )
  state = process.set_model_weights(
    process.initialize(),
    tff.learning.models.ModelWeights(tuple(work.weights), ()),
  )
  stopwatch = common.Stopwatch()
  stopwatch()
  for t in range(rounds):
    datasets = [
      client_dataset(work, work.plan[t, k]) for k in range(num_clients)
    ]
    state = process.next(state, datasets).state
    stopwatch()
  model = models_keras.build(tf.keras, work.dense)
  process.get_model_weights(state).assign_weights_to(model)
  loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)(
    work.y_test, model(work.x_test)
  )
  return stopwatch.seconds, float(loss)


def run(work: common.Work) -> tuple[str, str, list[float], float]:
  """Trains and evaluates; see `common.main`."""
  try:
    return 'TFF', tff.__version__, *train(work)
  finally:
    # TFF does not end its runtime's process, which keeps our output open.
    for process in psutil.Process().children():
      process.kill()
      process.wait()


if __name__ == '__main__':
  common.main(run)
