"""SAFL compared with FedAvg on the bundled MNIST sample, over three seeds.

  python -m examples.safl_versus_fedavg docs/images/safl_versus_fedavg.png

The algorithms differ only in the model that a client starts a round from.
Clients, data, initial models and batches of a seed are identical, draw by
draw. A second picture, for dark pages, has the suffix `.dark.png`.
"""

import pathlib
import sys

import safl_tf
from safl_tf.data import registry
from safl_tf.reporting import charts, tables

ROUNDS = 50
SEEDS = (0, 1, 2)
ALGORITHMS = {
  'fedavg': safl_tf.build_fed_avg(),
  'safl': safl_tf.build_safl(epsilon=0.3, temperature=80),
}


def main(path: str) -> None:
  """Trains both with all seeds and draws test accuracy by round."""
  digits = registry.load('mnist_sample')
  runs = []
  for name, algorithm in ALGORITHMS.items():
    for seed in SEEDS:
      clients = safl_tf.ClientData.from_arrays(
        digits.x_train,
        digits.y_train,
        safl_tf.partition.by_labels(num_clients=20, max_labels=7, seed=seed),
      )
      result = safl_tf.train(
        safl_tf.lenet5,
        clients,
        algorithm,
        test_data=(digits.x_test, digits.y_test),
        rounds=ROUNDS,
        seed=seed,
      )
      runs.append(tables.Run({'algorithm': name}, seed, result.history))
  rows = tables.setting_rows(tables.run_rows(runs, (25,), 0.8))
  print(tables.to_markdown(tables.table(rows)))
  where = 'LeNet-5 on the MNIST sample, n = 20, ε = 0.3, L = 80'
  chart = charts.comparison(runs, subtitle=where, guess=0.1)['accuracy']
  light = pathlib.Path(path)
  charts.chart(chart, [light, light.with_suffix(f'.dark{light.suffix}')])


if __name__ == '__main__':
  main(sys.argv[1] if len(sys.argv) > 1 else 'safl_versus_fedavg.png')
