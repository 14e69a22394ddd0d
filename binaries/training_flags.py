"""Trains a Keras model over many simulated clients.

Without flags: SAFL, LeNet-5, 5,000 real MNIST digits on 20 clients that hold
few labels each. The defaults are the settings of "Gradual Federated Learning
with Simulated Annealing"; letters in brackets are the paper's.

  safl-train --algorithm=fedavg --rounds=50
  safl-train --flagfile=binaries/presets/mnist_n80.flags --data_dir=DIR
  safl-train --dataset=csv:flowers.csv --model=my_model.keras

Everything a run makes lies in OUTPUT_DIR/EXPERIMENT. The same command again
goes on where it stopped.
"""

import hashlib
import math
import os
import pathlib
from typing import Any

from binaries import common, data_flags, partitioning
from safl_tf.data.files import spec
from safl_tf.util import choices, errors, validation

FLAGS = common.Flags()

FLAGS.choice(
  'algorithm', 'safl', choices.ALGORITHMS, 'The federated algorithm.'
)
FLAGS.text('dataset', 'mnist_sample', spec.HELP['dataset'])
FLAGS.folder(
  'data_dir', None, "TFDS's folder; TFDS_DATA_DIR or its default if not given."
)
data_flags.define(FLAGS, 0.9, '.')
FLAGS.text(
  'model',
  'auto',
  'lenet5, light_vgg or the path of a .keras file; auto is lenet5 for digits '
  'and light_vgg for the rest, as in the paper.',
)
FLAGS.text(
  'activation', None, 'Of the hidden layers of lenet5 (tanh) or light_vgg.'
)

FLAGS.real(
  'fraction',
  1.0,
  '[R] Share of clients in a round.',
  low=0,
  high=1,
  open_low=True,
)
FLAGS.integer(
  'clients_per_round', None, '[s] Clients in a round, instead of R.', low=1
)
FLAGS.integer(
  'rounds',
  None,
  '[T] Communication rounds; 50 for mnist_sample, else 100.',
  low=1,
)
FLAGS.integer('local_epochs', 3, '[E] Local epochs in a round.', low=1)
FLAGS.integer('batch_size', 50, '[B] Examples in a batch.', low=1)
FLAGS.real(
  'learning_rate', 0.002, '[alpha] Learning rate.', low=0, open_low=True
)
FLAGS.choice(
  'optimizer', 'sgd', choices.OPTIMIZERS, 'Local optimizer, reset every round.'
)
FLAGS.choice(
  'loss',
  'categorical',
  choices.LOSSES,
  "[H] Cross-entropy, or the paper's with two terms.",
)
FLAGS.choice(
  'loss_reduction',
  'sum',
  choices.LOSS_REDUCTIONS,
  "How a batch's losses are put together.",
)

FLAGS.real(
  'epsilon',
  0.3,
  '[eps] Weight of the global model in an element that is kept local.',
  low=0,
  high=1,
)
FLAGS.real('temperature', 80.0, '[L] of p = exp(-t/L).', low=0, open_low=True)
FLAGS.choice(
  'anneal_clock',
  'round',
  choices.ANNEAL_CLOCKS,
  'What t in p = exp(-t/L) counts.',
)
FLAGS.choice(
  'mix_granularity',
  'element',
  choices.MIX_GRANULARITIES,
  'Whether u is drawn for every element or once for the model.',
)
FLAGS.real(
  'nu',
  0.5,
  '[nu] of q = exp(-Delta/nu), in extended_safl.',
  low=0,
  open_low=True,
)

FLAGS.choice(
  'aggregator',
  'auto',
  choices.AGGREGATORS,
  "How the server aggregates uploads, in place of the algorithm's own way.",
)
FLAGS.real(
  'trim_fraction',
  0.2,
  'Of trimmed_mean: the share left out at each end.',
  low=0,
  high=0.499,
)
FLAGS.integer(
  'num_byzantine',
  None,
  '[f] Of krum and multi_krum: how many uploads may be malicious; by default '
  'the most that they stand, (r - 3) / 2 of r uploads.',
  low=0,
)
FLAGS.integer(
  'num_selected',
  None,
  'Of multi_krum: how many uploads are averaged; r - f by default.',
  low=1,
)
FLAGS.choice(
  'ida_reference',
  'mean',
  choices.IDA_REFERENCES,
  'What ida measures distances from: the mean of the uploads, or that by size.',
)
FLAGS.choice('ida_norm', 'l2', choices.IDA_NORMS, "Of ida's distances.")
FLAGS.real(
  'astw_base',
  math.e / 2,
  'What astw divides the weight of an upload by in every round.',
  low=1,
)
FLAGS.boolean(
  'astw_layerwise',
  None,
  'Whether astw exchanges deep layers in a third of the rounds only; by '
  'default in astw, and not in astw_safl.',
)
FLAGS.choice(
  'fedma_matching',
  'hungarian',
  choices.FEDMA_MATCHINGS,
  "Of fedma: hungarian keeps the layers' widths, bbp may grow them.",
)
FLAGS.choice(
  'fedma_schedule',
  'layerwise',
  choices.FEDMA_SCHEDULES,
  'Of fedma: a layer in each round, or all at once.',
)
FLAGS.choice(
  'fedma_average',
  'mean',
  choices.FEDMA_AVERAGES,
  'Of fedma: the mean of matched units, or the one that its prior shrinks.',
)
FLAGS.real(
  'fedma_gamma',
  7.0,
  'Of fedma with bbp: how readily new units are opened.',
  low=0,
  open_low=True,
)
FLAGS.choice(
  'server_optimizer',
  'none',
  ('none', *choices.SERVER_OPTIMIZERS),
  'Takes the change of the global model as the direction of its step.',
)
FLAGS.real(
  'server_learning_rate',
  None,
  'Of the server; 1 for sgd and momentum, else 0.01.',
  low=0,
  open_low=True,
)
FLAGS.real('server_beta_1', 0.9, "Of the server's momentum.", low=0, high=1)
FLAGS.real(
  'server_beta_2', 0.99, "Of the server's second moment.", low=0, high=1
)
FLAGS.real(
  'server_tau',
  1e-3,
  "How adaptive the server's steps are: the larger, the less.",
  low=0,
  open_low=True,
)
FLAGS.real(
  'proximal_mu',
  0.0,
  '[mu] of FedProx: how strongly clients are held near the global model.',
  low=0,
)
FLAGS.real(
  'holdout',
  None,
  'In extended_safl: the share of its examples that a client never trains on '
  'and measures h on; by default h is measured on what it trains on.',
  low=0,
  high=0.9,
  open_low=True,
)

FLAGS.choice('attack', 'none', choices.ATTACKS, 'What malicious clients do.')
FLAGS.real(
  'attack_fraction', 0.2, 'Share of clients that are malicious.', low=0, high=1
)
FLAGS.real(
  'attack_strength',
  1.0,
  'The factor of sign_flip and scale, the standard deviation of noise.',
  low=0,
)

partitioning.define(FLAGS)
FLAGS.choice(
  'init',
  'per_client',
  choices.INITS,
  "Every client's own initial model, or one for all (a .keras file's weights).",
)
FLAGS.integer('seed', 0, 'Of all random draws.', low=0, high=2**63 - 1)

FLAGS.text('output_dir', 'runs', 'Where runs are kept.')
FLAGS.text('experiment', None, "The run's name; ALGORITHM_DATASET by default.")
FLAGS.integer('eval_every', 1, 'Rounds between evaluations.', low=1)
FLAGS.integer('checkpoint_every', 5, 'Rounds between checkpoints.', low=1)
FLAGS.integer('keep_checkpoints', 2, 'Checkpoints to keep.', low=1)
FLAGS.real(
  'stop_at_accuracy', None, 'Stop at this test accuracy.', low=0, high=1
)
FLAGS.boolean(
  'client_table',
  False,
  'Write clients.csv: accuracy of the own and the global model on every '
  "client's data.",
)
FLAGS.choice(
  'export', 'both', choices.EXPORTS, 'What to write of the global model.'
)

FLAGS.choice(
  'executor',
  'auto',
  choices.EXECUTORS,
  'How clients are run: serial is one by one, step by step; auto is threads on '
  'a CPU and vectorized (stacked) on GPUs. All give the same results.',
)
FLAGS.integer(
  'stack',
  None,
  'Clients that --executor=vectorized stacks; by memory if not given.',
  low=1,
)
FLAGS.choice(
  'client_store',
  'ram',
  choices.CLIENT_STORES,
  "Where clients' models are between rounds; mmap is a temporary file in the "
  "run's folder, for more clients than the memory holds.",
)
FLAGS.choice(
  'jit_compile', 'auto', choices.JIT_COMPILES, 'Whether XLA compiles training.'
)
FLAGS.text(
  'device',
  'auto',
  'auto, cpu, gpu (all GPUs, side by side), or for example gpu:1.',
)
FLAGS.choice(
  'mixed_precision',
  'none',
  choices.MIXED_PRECISIONS,
  'Precision of computation in built-in models.',
)


def values(flags: common.Flags = FLAGS, **given: Any) -> dict[str, Any]:
  """All flags of a training, with defaults that follow from others.

  Args:
    flags: where to read them; another program may have them, too.
    **given: values that are not read, by name.

  Raises:
    InputError: flags that contradict each other, or name what isn't there.
  """
  found = flags.own(__name__) | given
  found |= _check_data(found, flags)
  sample = found['dataset'] == 'mnist_sample'
  if found['rounds'] is None:
    found['rounds'] = 50 if sample else 100
  found |= partitioning.complete(found)
  if found['model'] == 'auto':
    digits = found['dataset'] in ('mnist_sample', 'mnist')
    found['model'] = 'lenet5' if digits else 'light_vgg'
  if found['experiment'] is None:
    data = spec.short_name(found['dataset'])
    found['experiment'] = f'{found["algorithm"]}_{data}'
  for name in ('model', 'output_dir'):
    found[name] = os.path.expanduser(found[name])
  _check_clients(found, flags)
  _check_experiment(found['experiment'])
  return found | _check_model(found)


def _check_data(found: dict[str, Any], flags: common.Flags) -> dict[str, Any]:
  """The data set, and what tells its files from others of the same name."""
  name = spec.check(found['dataset'])
  new: dict[str, Any] = {'dataset': name}
  options = spec.options(found | new)
  if name not in choices.DATASETS and not flags['max_labels'].present:
    new['max_labels'] = None  # as many as there are, see `partitioning`
  if spec.is_user_data(name):
    from safl_tf.data.files import loader

    new['test_fraction'] = options.test_fraction
    new['data_sha256'] = loader.inspect(name, options)
  return new


def _check_clients(found: dict[str, Any], flags: common.Flags) -> None:
  s, n = found['clients_per_round'], found['num_clients']
  if s is None:
    return
  if flags['fraction'].present:
    raise errors.InputError(
      'clients_per_round',
      s,
      f'contradicts --fraction={found["fraction"]:g}; give one of them',
    )
  if n is not None and s > n:
    raise errors.InputError(
      'clients_per_round', s, f'must be at most the number of clients, {n}'
    )


def _check_experiment(name: str) -> None:
  if name in ('', '.', '..') or '/' in name or '\\' in name:
    raise errors.InputError(
      'experiment', name, "must be a folder's name, not a path"
    )


def _check_model(found: dict[str, Any]) -> dict[str, str]:
  """What tells a model's file from another one under the same name."""
  name = found['model']
  if not name.endswith('.keras'):
    validation.choice('model', name, ['auto', *choices.MODELS, 'FILE.keras'])
    return {}
  common.check_keras_file(name)
  for flag, unset in (('activation', None), ('mixed_precision', 'none')):
    if found[flag] != unset:
      raise errors.InputError(
        flag, found[flag], f'is for built-in models; {name} has its own'
      )
  digest = hashlib.sha256(pathlib.Path(name).read_bytes())
  return {'model_sha256': digest.hexdigest()}
