"""Trains a Keras model over many simulated devices.

Without flags: SAFL, LeNet-5, 5,000 real MNIST digits on 20 devices that hold
few labels each. The defaults are the settings of "Gradual Federated Learning
with Simulated Annealing"; letters in brackets are the paper's.

  safl-train --algorithm=fedavg --rounds=50
  safl-train --flagfile=binaries/presets/mnist_n80.flags --data_dir=DIR

Everything a run makes lies in OUTPUT_DIR/EXPERIMENT. The same command again
goes on where it stopped.
"""

from typing import Any

from absl import flags

from binaries import common
from safl_tf import names

FLAGS = flags.FLAGS

# Sizes that follow the data set: the sample's, and the paper's for all others.
_SAMPLE_SIZES = {'num_devices': 20, 'mean_examples': 200.0, 'rounds': 60}
_PAPER_SIZES = {'num_devices': 80, 'mean_examples': 600.0, 'rounds': 100}

common.choice('algorithm', 'safl', names.ALGORITHMS, 'The federated algorithm.')
common.choice(
  'dataset', 'mnist_sample', names.DATASETS, 'The data, all but the first TFDS.'
)
flags.DEFINE_string(
  'data_dir', None, "TFDS's folder; TFDS_DATA_DIR or its default if not given."
)
flags.DEFINE_string(
  'model',
  'auto',
  'lenet5, light_vgg or the path of a .keras file; auto is lenet5 for digits '
  'and light_vgg for the rest, as in the paper.',
)
flags.DEFINE_string(
  'activation', None, 'Of the hidden layers of lenet5 (tanh) or light_vgg.'
)

common.integer(
  'num_devices',
  None,
  '[n] Devices; 20 for mnist_sample, else 80.',
  low=1,
)
common.real(
  'fraction',
  1.0,
  '[R] Share of devices in a round.',
  low=0,
  high=1,
  open_low=True,
)
common.integer(
  'devices_per_round', None, '[s] Devices in a round, instead of R.', low=1
)
common.integer(
  'rounds',
  None,
  '[T] Communication rounds; 60 for mnist_sample, else 100.',
  low=1,
)
common.integer('local_epochs', 3, '[E] Local epochs in a round.', low=1)
common.integer('batch_size', 50, '[B] Examples in a batch.', low=1)
common.real(
  'learning_rate', 0.002, '[alpha] Learning rate.', low=0, open_low=True
)
common.choice(
  'optimizer', 'sgd', names.OPTIMIZERS, 'Local optimizer, reset every round.'
)
common.choice(
  'loss',
  'categorical',
  names.LOSSES,
  "[H] Cross-entropy, or the paper's with two terms.",
)
common.choice(
  'loss_reduction',
  'sum',
  names.LOSS_REDUCTIONS,
  "How a batch's losses are put together.",
)

common.real(
  'epsilon',
  0.3,
  '[eps] Weight of the global model in an element that is kept local.',
  low=0,
  high=1,
)
common.real('temperature', 80.0, '[L] of p = exp(-t/L).', low=0, open_low=True)
common.choice(
  'anneal_clock',
  'round',
  names.ANNEAL_CLOCKS,
  'What t in p = exp(-t/L) counts.',
)
common.choice(
  'mix_granularity',
  'element',
  names.MIX_GRANULARITIES,
  'Whether u is drawn for every element or once for the model.',
)
common.real(
  'nu',
  0.5,
  '[nu] of q = exp(-Delta/nu), in extended_safl.',
  low=0,
  open_low=True,
)

common.choice(
  'partition',
  'labels',
  names.PARTITIONS,
  "How devices get data: the paper's, with few labels each, or all alike.",
)
common.integer('max_labels', 7, 'Most labels on a device.', low=1)
common.real(
  'mean_examples',
  None,
  "[m] Mean size of the devices' data; 200 for mnist_sample, else 600.",
  low=0,
  open_low=True,
)
common.real(
  'variance_examples', 100.0, '[sigma^2] Variance of the sizes.', low=0
)
common.choice(
  'init',
  'per_device',
  names.INITS,
  "Every device's own initial model, or one for all (a .keras file's weights).",
)
common.integer('seed', 0, 'Of all random draws.', low=0, high=2**63 - 1)

flags.DEFINE_string('output_dir', 'runs', 'Where runs are kept.')
flags.DEFINE_string(
  'experiment', None, "The run's name; ALGORITHM_DATASET by default."
)
common.integer('eval_every', 1, 'Rounds between evaluations.', low=1)
common.integer('checkpoint_every', 5, 'Rounds between checkpoints.', low=1)
common.integer('keep_checkpoints', 2, 'Checkpoints to keep.', low=1)
common.real(
  'stop_at_accuracy', None, 'Stop at this test accuracy.', low=0, high=1
)
flags.DEFINE_bool(
  'device_table',
  False,
  'Write devices.csv: accuracy of the own and the global model on every '
  "device's data.",
)
common.choice(
  'export', 'both', names.EXPORTS, 'What to write of the global model.'
)

common.choice(
  'executor', 'auto', names.EXECUTORS, 'How devices are run side by side.'
)
common.choice(
  'jit_compile', 'auto', names.JIT_COMPILES, 'Whether XLA compiles training.'
)
flags.DEFINE_string('device', 'auto', 'auto, cpu, gpu, or for example gpu:1.')
common.choice(
  'mixed_precision',
  'none',
  names.MIXED_PRECISIONS,
  'Precision of computation in built-in models.',
)


def values() -> dict[str, Any]:
  """All flags of this program, with defaults that follow from others."""
  defined = FLAGS.flags_by_module_dict()[__name__]
  found = {flag.name: flag.value for flag in defined}
  sample = found['dataset'] == 'mnist_sample'
  sizes = _SAMPLE_SIZES if sample else _PAPER_SIZES
  for name, size in sizes.items():
    if found[name] is None:
      found[name] = size
  if found['model'] == 'auto':
    digits = found['dataset'] in ('mnist_sample', 'mnist')
    found['model'] = 'lenet5' if digits else 'light_vgg'
  if found['experiment'] is None:
    found['experiment'] = f'{found["algorithm"]}_{found["dataset"]}'
  return found
