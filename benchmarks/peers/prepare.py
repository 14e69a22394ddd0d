"""Writes the workload of all frameworks and the expected test losses.

  python -m benchmarks.peers.prepare work.npz           # MNIST-LeNet-80
  python -m benchmarks.peers.prepare work.npz --quick   # 8 clients
  python -m benchmarks.peers.prepare work.npz --model=dense

The workload is FedAvg on the bundled MNIST sample: all clients in every round,
shared initial weights, plain SGD on the loss summed over a batch. The file has
every batch of every client, so that every framework must reach the same test
loss. Reading it only needs NumPy, see `benchmarks.peers.common`.
"""

import argparse
import os
import pathlib

ROUNDS = 4


def main() -> None:
  """Trains with safl_tf and writes the workload."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('output', type=pathlib.Path)
  parser.add_argument('--quick', action='store_true')
  parser.add_argument('--model', choices=['lenet5', 'dense'], default='lenet5')
  arguments = parser.parse_args()
  os.environ['TF_CPP_MIN_LOG_LEVEL'] = '3'

  import keras
  import numpy as np

  from benchmarks.peers import safl
  from safl_tf.core import batching, seeds
  from safl_tf.data import registry

  dataset = registry.load('mnist_sample')
  x, y = dataset.x_train, dataset.y_train
  num_clients = 8 if arguments.quick else 80
  rng = np.random.default_rng(0)
  parts = np.array(
    [rng.choice(len(y), 600, replace=False) for _ in range(num_clients)],
    np.int32,
  )
  keras.utils.set_random_seed(0)
  weights = safl.build_model(arguments.model == 'dense').get_weights()
  trainer = safl.make_process(x, y, parts, weights)
  config = trainer.config
  state = trainer.initialize(0)
  expected = []
  for _ in range(ROUNDS):
    state, _ = trainer.next(state)
    loss = safl.test_loss(trainer, state, dataset.x_test, dataset.y_test)
    expected.append(loss)
    print(f'round {state.t}: test loss {loss:.6f}')
  plan = [
    [
      batching.plan_batches(
        part,
        config,
        int(config.steps(len(part))),
        seeds.generator(0, seeds.Role.BATCHES, t, k),
      ).examples
      for k, part in enumerate(parts)
    ]
    for t in range(1, ROUNDS + 1)
  ]
  np.savez(
    arguments.output,
    x=x,
    y=y,
    x_test=dataset.x_test,
    y_test=dataset.y_test,
    parts=parts,
    plan=np.array(plan, np.int32),
    learning_rate=config.learning_rate,
    expected=expected,
    **{f'weight_{i}': w for i, w in enumerate(weights)},
  )


if __name__ == '__main__':
  main()
