"""Federated training of a custom Keras model on NumPy arrays.

python -m examples.own_model
"""

import keras
import numpy as np

import safl_tf


def make_model() -> keras.Model:
  """Builds a Keras classifier with BatchNorm and Dropout."""
  return keras.Sequential(
    [
      keras.Input((20,)),
      keras.layers.Dense(64, activation='relu'),
      keras.layers.BatchNormalization(),
      keras.layers.Dropout(0.2),
      keras.layers.Dense(4, activation='softmax'),
    ]
  )


def make_data(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
  """Draws points of four Gaussian classes in 20 dimensions."""
  rng = np.random.default_rng(seed)
  centres = np.random.default_rng(0).normal(size=(4, 20))
  y = rng.integers(0, 4, n)
  x = centres[y] + rng.normal(size=(n, 20))
  return x.astype(np.float32), y


def main() -> None:
  """Trains with Extended SAFL and predicts with the global model."""
  x, y = make_data(3000, seed=1)
  x_test, y_test = make_data(1000, seed=2)
  clients = safl_tf.ClientData.from_arrays(
    x,
    y,
    partition=safl_tf.partition.by_labels(num_clients=10, max_labels=3, seed=0),
  )
  result = safl_tf.train(
    make_model,
    clients,
    algorithm=safl_tf.build_extended_safl(fraction=0.5),
    test_data=(x_test, y_test),
    rounds=20,
  )
  last = result.history[-1]
  print(f'accuracy {last["test_accuracy"]:.1%}')
  print(f'uploads  {sum(row["uploaded"] for row in result.history)} of 100')
  print(
    'first predictions', result.model.predict(x_test[:5], verbose=0).argmax(1)
  )


if __name__ == '__main__':
  main()
