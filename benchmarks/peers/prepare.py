"""Writes the work that every framework is given, and the answer to it.

  python -m benchmarks.peers.prepare work.npz           # MNIST-LeNet-80
  python -m benchmarks.peers.prepare work.npz --quick   # 8 devices

The work is FedAvg on the bundled digits: all devices in every round, the same
initial weights for all, plain SGD on the loss summed over a batch. Every batch
of every device is written down, so that a framework that does the same work
must end at the same test loss. The file needs nothing but NumPy to be read, see
`benchmarks.peers.common`.
"""

import argparse
import os
import pathlib

ROUNDS = 4


def main() -> None:
  """Trains with safl_tf and writes what went in and what came out."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('output', type=pathlib.Path)
  parser.add_argument('--quick', action='store_true')
  arguments = parser.parse_args()
  os.environ['TF_CPP_MIN_LOG_LEVEL'] = '3'

  import keras
  import numpy as np

  from benchmarks.peers import safl
  from safl_tf import local, seeds
  from safl_tf.data import sources
  from safl_tf.models import lenet5

  dataset = sources.load('mnist_sample')
  x, y = dataset.x_train, dataset.y_train
  devices = 8 if arguments.quick else 80
  rng = np.random.default_rng(0)
  parts = np.array(
    [rng.choice(len(y), 600, replace=False) for _ in range(devices)], np.int32
  )
  keras.utils.set_random_seed(0)
  weights = lenet5.lenet5().get_weights()
  trainer = safl.make_process(x, y, parts, weights)
  config = trainer.config
  state = trainer.initialize(0)
  expected = []
  for _ in range(ROUNDS):
    state, _ = trainer.next(state)
    loss = safl.test_loss(trainer, state.z_bar, dataset.x_test, dataset.y_test)
    expected.append(loss)
    print(f'round {state.t}: test loss {loss:.6f}')
  plan = [
    [
      local.plan_batches(
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
