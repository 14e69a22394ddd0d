"""Whose updates does Extended SAFL withhold, if half the clients are biased?

  python -m examples.biased_clients

The bundled sample, 20 clients, of which 10 hold nothing but the digit 2. For
each round: the mean q of (25) and how many upload, of the clients with one
digit and of those with several.
"""

from collections.abc import Iterator

import numpy as np

import safl_tf
from safl_tf.data import registry

ROUNDS = 10


def uploads(
  rounds: int = ROUNDS, num_clients: int = 20, mean_examples: int = 200
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
  """For each round q, who uploads and who has one digit, by client."""
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
  heads = [f'{told}, {group}' for group in groups for told in ('q', 'uploads')]
  print(f'| round | {" | ".join(heads)} |\n|---{"|---" * len(heads)}|')
  for t, (q, sent, one_digit) in enumerate(uploads(), 1):
    cells = [
      f'{q[group].mean():.2f} | {sent[group].sum()} of {group.sum()}'
      for group in (one_digit, ~one_digit)
    ]
    print(f'| {t} | {" | ".join(cells)} |', flush=True)


if __name__ == '__main__':
  main()
