"""Extended SAFL with biased clients: who uploads and who withholds.

  python -m examples.biased_clients

Trains on the bundled MNIST sample with 20 clients, of which 10 hold only the
digit 2. For each round, prints the mean q of (25) and the number of uploads,
separately for clients with one digit and with several.
"""

from collections.abc import Iterator

import numpy as np

import safl_tf
from safl_tf.data import registry

ROUNDS = 10


def uploads(
  rounds: int = ROUNDS, num_clients: int = 20, mean_examples: int = 200
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
  """Yields for each round, by client: q, who uploads, and who has one digit."""
  digits = registry.load('mnist_sample')
  clients = safl_tf.ClientData.from_arrays(
    digits.x_train,
    digits.y_train,
    partition=safl_tf.partition.biased(
      num_clients, biased_label=2, mean_examples=mean_examples, seed=0
    ),
  )
  one_digit = np.count_nonzero(clients.label_counts(), axis=1) == 1
  process = safl_tf.FederatedProcess(
    safl_tf.lenet5, clients, safl_tf.build_extended_safl()
  )
  state = process.initialize(seed=0)
  for _ in range(rounds):
    state, metrics = process.next(state)
    yield metrics.q, metrics.sent, one_digit[metrics.ids]


def main() -> None:
  """Prints a Markdown table."""
  groups = 'one digit', 'several digits'
  headings = [f'{name}, {g}' for g in groups for name in ('q', 'uploads')]
  print(f'| round | {" | ".join(headings)} |\n|---{"|---" * len(headings)}|')
  for t, (q, sent, one_digit) in enumerate(uploads(), 1):
    cells = [
      f'{q[group].mean():.2f} | {sent[group].sum()} of {group.sum()}'
      for group in (one_digit, ~one_digit)
    ]
    print(f'| {t} | {" | ".join(cells)} |', flush=True)


if __name__ == '__main__':
  main()
