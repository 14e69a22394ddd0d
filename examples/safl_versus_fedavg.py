"""SAFL compared with FedAvg on the bundled MNIST sample.

  python -m examples.safl_versus_fedavg docs/images/safl_versus_fedavg.png

The algorithms differ only in the model that a client starts a round from.
Clients, data, initial models and batches are identical, draw by draw.
"""

import sys

import matplotlib.figure

import safl_tf
from safl_tf.data import registry

ROUNDS = 50


def main(path: str) -> None:
  """Trains both and plots test accuracy by round."""
  digits = registry.load('mnist_sample')
  clients = safl_tf.ClientData.from_arrays(
    digits.x_train,
    digits.y_train,
    partition=safl_tf.partition.by_labels(num_clients=20, max_labels=7, seed=0),
  )
  algorithms = {
    'SAFL, ε = 0.3, L = 80': safl_tf.build_safl(epsilon=0.3, temperature=80),
    'FedAvg': safl_tf.build_fed_avg(),
  }
  figure = matplotlib.figure.Figure(figsize=(7, 3.6), layout='constrained')
  axes = figure.add_subplot(
    xlabel='communication round', ylabel='test accuracy (%)', ylim=(0, 100)
  )
  for name, algorithm in algorithms.items():
    result = safl_tf.train(
      safl_tf.lenet5,
      clients,
      algorithm,
      test_data=(digits.x_test, digits.y_test),
      rounds=ROUNDS,
      seed=0,
    )
    accuracy = [100 * row['test_accuracy'] for row in result.history]
    print(f'{name:22s} round {ROUNDS}: {accuracy[-1]:.1f} %')
    axes.plot(range(1, ROUNDS + 1), accuracy, label=name)
  axes.grid(alpha=0.3)
  axes.legend(frameon=False)
  figure.savefig(path, dpi=120)


if __name__ == '__main__':
  main(sys.argv[1] if len(sys.argv) > 1 else 'safl_versus_fedavg.png')
