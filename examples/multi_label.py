"""Several labels per example, rare ones weighted, with Extended SAFL.

python -m examples.multi_label
"""

import keras
import numpy as np
from sklearn import datasets

import safl_tf


def make_model() -> keras.Model:
  """Builds a model with one sigmoid output for each of five labels."""
  return keras.Sequential(
    [
      keras.Input((20,)),
      keras.layers.Normalization(mean=6.0, variance=12.0),
      keras.layers.Dense(32, activation='relu'),
      keras.layers.Dense(5, activation='sigmoid'),
    ]
  )


def main(rounds: int = 30) -> safl_tf.Result:
  """Trains ten clients and prints the metrics of the last round."""
  x, y = datasets.make_multilabel_classification(
    2500, n_features=20, n_classes=5, n_labels=2, random_state=0
  )
  x = x.astype(np.float32)
  # Examples with rare labels count more.
  weight = (y / y.mean(axis=0)).sum(axis=1) + 1
  clients = safl_tf.ClientData.from_arrays(
    x[:2000],
    y[:2000],
    partition=safl_tf.partition.quantity(num_clients=10, seed=0),
    sample_weight=weight[:2000] / weight.mean(),
  )
  result = safl_tf.train(
    make_model,
    clients,
    algorithm=safl_tf.build_extended_safl(),
    loss=keras.losses.BinaryFocalCrossentropy(gamma=1.0),
    metrics=['AUC', keras.metrics.F1Score(average='macro', threshold=0.5)],
    test_data=(x[2000:], y[2000:]),
    rounds=rounds,
    config=safl_tf.LocalConfig(learning_rate=0.01),
  )
  last = result.history[-1]
  for name in ('test_accuracy', 'test_AUC', 'test_f1_score', 'test_loss'):
    print(f'{name:<14} {last[name]:.3f}')
  uploads = sum(row['uploaded'] for row in result.history)
  print(f'uploads        {uploads} of {10 * rounds}')
  return result


if __name__ == '__main__':
  main()
