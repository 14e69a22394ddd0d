"""Robustness of aggregators to malicious clients that flip their updates.

  python -m examples.malicious_clients

Trains on the bundled MNIST sample with 20 clients for 30 rounds, from a shared
initial model, with which FedAvg works well without an attack. Four clients
upload z̄ - λ·(z - z̄) instead of their model z, with λ = 1 and λ = 5.
"""

import dataclasses

import safl_tf
from safl_tf.algorithms import registry as algorithm_registry
from safl_tf.data import registry as data_registry
from safl_tf.util import choices

ROUNDS = 30
ATTACKS = {
  'none': None,
  'λ = 1': safl_tf.Attack('sign_flip', fraction=0.2, strength=1.0),
  'λ = 5': safl_tf.Attack('sign_flip', fraction=0.2, strength=5.0),
}


def main() -> None:
  """Trains every aggregator under every attack and prints a Markdown table."""
  digits = data_registry.load('mnist_sample')
  clients = safl_tf.ClientData.from_arrays(
    digits.x_train,
    digits.y_train,
    partition=safl_tf.partition.by_labels(
      num_clients=20, max_labels=7, mean_examples=200, seed=0
    ),
  )
  rows = {
    'FedAvg': safl_tf.build_fed_avg(),
    'SAFL': safl_tf.build_safl(),
    'Extended SAFL': safl_tf.build_extended_safl(),
  }
  for name in choices.AGGREGATORS[2:]:  # without auto and size
    aggregate = algorithm_registry.AGGREGATORS[name]()
    rows[f'FedAvg, {name}'] = dataclasses.replace(
      rows['FedAvg'], aggregate=aggregate
    )
  print(f'| | {" | ".join(ATTACKS)} |\n|---{"|---" * len(ATTACKS)}|')
  for name, algorithm in rows.items():
    cells = []
    for attack in ATTACKS.values():
      result = safl_tf.train(
        safl_tf.lenet5,
        clients,
        algorithm,
        test_data=(digits.x_test, digits.y_test),
        rounds=ROUNDS,
        init='shared',
        attack=attack,
        eval_every=ROUNDS,
        progress=False,
      )
      cells.append(f'{result.history[-1]["test_accuracy"]:.1%}')
    print(f'| {name} | {" | ".join(cells)} |', flush=True)


if __name__ == '__main__':
  main()
