"""Flags of models, algorithms, local training, aggregation and attacks."""

import dataclasses
import hashlib
import math
import os
import pathlib
import zipfile
from typing import Any, Self

from safl_tf.util import choices, errors, validation

from .conditions import Others, When
from .group import (
  Group,
  boolean,
  choice,
  integer,
  parse_list,
  real,
  text,
  to_integer,
)

_SAFL = When(
  algorithm=('safl', 'extended_safl', 'ida_safl', 'astw_safl', 'scaffold_safl')
)
_EXTENDED = When(algorithm=('extended_safl',))
_NOT_ONE_STEP = When(algorithm=Others(['fedsgd']))
_PER_CLIENT = When(algorithm=Others(['fedsgd', 'feddyn']))
_ANY_OPTIMIZER = When(algorithm=Others(['fedsgd', 'scaffold', 'scaffold_safl']))
_NOT_POOLED = When(algorithm=Others(['centralized']))
_BUILT_IN = When(model=Others(['FILE.keras']))
_FEDMA = When(algorithm=('fedma',))
_OWN_IDA = When(aggregator=('auto',), algorithm=('ida', 'ida_safl'))
_OWN_ASTW = When(aggregator=('auto',), algorithm=('astw', 'astw_safl'))
_IDA = When(aggregator=('ida',)) | _OWN_IDA
_ASTW = When(aggregator=('astw',)) | _OWN_ASTW
_ATTACKED = When(attack=Others(['none']))


def _check_code(name: str, path: str) -> None:
  """Refuses a path that cannot be a file of Python code."""
  if not (path.endswith('.py') and os.path.isfile(os.path.expanduser(path))):
    raise errors.InputError(name, path, 'must be an existing file FILE.py')


def custom_objects(where: str, when: When | None = None) -> Any:
  """Returns the field of --custom_objects.

  Args:
    where: what has the objects.
    when: see `group.text`.
  """
  return text(
    None,
    f'FILE.py with the layers and functions of {where} that are not of Keras; '
    'it registers them with keras.saving.register_keras_serializable.',
    when,
    check=_check_code,
  )


@dataclasses.dataclass(frozen=True)
class Model(Group, topic='model'):
  """The model and its initial weights."""

  model: str = text(
    'auto',
    'lenet5, light_vgg, mlp (for tables), char_gru (for next characters) or '
    'the path of a .keras file; auto is lenet5 for digits and light_vgg for '
    'other images, as in the paper, and mlp or char_gru for other data.',
  )
  activation: str | None = text(
    None,
    'Activation of the hidden layers of a built-in model; tanh in lenet5 and '
    'char_gru, relu in light_vgg and mlp if not given.',
    _BUILT_IN,
  )
  init: str = choice(
    'auto',
    choices.INITS,
    'Whether clients start from initial models of their own or from a shared '
    'one (with the weights of a .keras file); auto is shared for a .keras '
    'file, else per_client.',
    _PER_CLIENT,
  )
  from_logits: bool | None = boolean(
    None,
    'Whether the outputs of a .keras file are logits; the loss it was compiled '
    'with or its last layer says it if not given.',
    When(model=('FILE.keras',)),
  )
  custom_objects: str | None = custom_objects(
    'a .keras file', When(model=('FILE.keras',))
  )
  model_sha256: str | None = None
  custom_objects_sha256: str | None = None

  def resolve_model(self, dataset: str, has_images: bool) -> Self:
    """Resolves `auto`, and `resolve_files`."""
    name = os.path.expanduser(self.model)
    if name == 'auto':
      digits = dataset in ('mnist_sample', 'mnist')
      name = 'lenet5' if digits else 'light_vgg'
      if not has_images:
        name = 'char_gru' if dataset == 'python_docs' else 'mlp'
    if not name.endswith('.keras'):
      validation.choice('model', name, ['auto', *choices.MODELS, 'FILE.keras'])
      return dataclasses.replace(self, model=name)
    return self.resolve_files()

  def resolve_files(self) -> Self:
    """Checks the paths of a .keras file and its code; adds their digests."""
    name = os.path.expanduser(self.model)
    if not name.endswith('.keras'):
      return self
    check_keras_file(name)
    code = None
    if self.custom_objects is not None:
      code = os.path.expanduser(self.custom_objects)
    return dataclasses.replace(
      self,
      model=name,
      custom_objects=code,
      model_sha256=_digest(name),
      custom_objects_sha256=code and _digest(code),
    )


@dataclasses.dataclass(frozen=True)
class Algorithm(Group, topic='algorithm'):
  """The federated algorithm: selection, mixing and gate."""

  algorithm: str = choice(
    'safl', choices.ALGORITHMS, 'The federated algorithm.'
  )
  fraction: float | None = real(
    None,
    '[R] Fraction of the clients selected in a round; 1 if not given.',
    _NOT_POOLED,
  )
  clients_per_round: int | None = integer(
    None,
    '[s] Number of clients selected in a round, instead of R.',
    _NOT_POOLED,
  )
  epsilon: float = real(
    0.3, '[eps] Weight of the global model in elements kept local.', _SAFL
  )
  temperature: float = real(80.0, '[L] Temperature in p = exp(-t/L).', _SAFL)
  anneal_clock: str = choice(
    'round', choices.ANNEAL_CLOCKS, '[t] Unit of t in p = exp(-t/L).', _SAFL
  )
  mix_granularity: str = choice(
    'element',
    choices.MIX_GRANULARITIES,
    '[u] Whether u is drawn per element or once per model.',
    _SAFL,
  )
  nu: float = real(0.5, '[nu] Scale in q = exp(-Delta/nu).', _EXTENDED)
  holdout: float | None = real(
    None,
    '[h] Fraction of the examples of a client reserved for measuring h; h is '
    'measured on the training examples if not given.',
    _EXTENDED,
  )
  proximal_mu: float | None = real(
    None,
    "[mu] Weight of FedProx's proximal term mu/2 |w - z|^2; 0.01 in fedprox "
    'and none in other algorithms if not given.',
    When(algorithm=Others(['local_only', 'fedsgd'])),
  )
  feddyn_alpha: float = real(
    0.1,
    "Strength of FedDyn's dynamic regularisation.",
    When(algorithm=('feddyn',)),
  )

  def resolve_selection(self, num_clients: int | None) -> Self:
    """Checks the number of selected clients, if the total is known."""
    s, hint = self.clients_per_round, None
    if s is not None and self.fraction is not None:
      hint = f'contradicts --fraction={self.fraction:g}; give one of them'
    elif s is not None and num_clients is not None and s > num_clients:
      hint = f'must be at most the number of clients, {num_clients}'
    if hint:
      raise errors.InputError('clients_per_round', s, hint)
    fraction = 1.0 if self.fraction is None else self.fraction
    return dataclasses.replace(self, fraction=fraction)


@dataclasses.dataclass(frozen=True)
class LocalTraining(Group, topic='local training'):
  """The training of a client within a round."""

  local_epochs: int = integer(3, '[E] Local epochs per round.', _NOT_ONE_STEP)
  batch_size: int = integer(50, '[B] Examples per batch.')
  learning_rate: float = real(0.002, '[alpha] Learning rate.')
  optimizer: str = choice(
    'sgd',
    choices.OPTIMIZERS,
    'Optimizer of the clients, reset every round.',
    _ANY_OPTIMIZER,
  )
  loss_reduction: str = choice(
    'sum',
    choices.LOSS_REDUCTIONS,
    'Reduction of the losses of the examples in a batch.',
    _NOT_ONE_STEP,
  )


@dataclasses.dataclass(frozen=True)
class Objective(Group, topic='loss and metrics'):
  """What models learn and how they are scored."""

  loss: str | None = text(
    None,
    "[H] categorical (cross-entropy), paper (the paper's two-term "
    'cross-entropy) or a loss of Keras, such as mse or binary_crossentropy. '
    'That of a compiled .keras file, else the one for the data, if not given.',
  )
  metrics: str | None = text(
    None,
    'Metrics of Keras to report on the test data, separated by commas, such as '
    'mae,r2_score or AUC; those of a compiled .keras file if not given.',
  )
  score: str | None = text(
    None,
    '[h] Metric of Keras in [0, 1] that clients compare models by; the '
    'accuracy, if there is one, if not given.',
    _EXTENDED,
  )
  class_weight: str | None = text(
    None,
    'Weights of classes in training, as CLASS:WEIGHT separated by commas, such '
    'as 0:1,1:5; 1 for classes that are not given.',
  )

  def task_options(self) -> dict[str, Any]:
    """Returns the arguments of a process that say what models learn."""
    names = self.metrics and parse_list('metrics', self.metrics, str)
    weights = None
    if self.class_weight is not None:
      items = parse_list('class_weight', self.class_weight, _weight)
      weights = dict(items)
      if len(weights) < len(items):
        hint = 'must name each class once'
        raise errors.InputError('class_weight', self.class_weight, hint)
    return {
      'loss': self.loss,
      'metrics': names,
      'score': self.score,
      'class_weight': weights,
    }


def _weight(item: str) -> tuple[int, float]:
  label, _, weight = item.partition(':')
  try:
    return to_integer(label), float(weight)
  except ValueError:
    hint = 'must be CLASS:WEIGHT, separated by commas, such as 0:1,1:5'
    raise errors.InputError('class_weight', item, hint) from None


@dataclasses.dataclass(frozen=True)
class Aggregation(Group, topic='aggregation'):
  """The aggregation of uploads on the server."""

  aggregator: str = choice(
    'auto',
    choices.AGGREGATORS,
    "Aggregation rule; auto is the algorithm's own.",
    When(
      algorithm=Others(
        [
          'centralized',
          'local_only',
          'fedma',
          'scaffold',
          'scaffold_safl',
          'feddyn',
        ]
      )
    ),
  )
  trim_fraction: float = real(
    0.2, 'Fraction removed at each end.', When(aggregator=('trimmed_mean',))
  )
  num_byzantine: int | None = integer(
    None,
    '[f] Number of Byzantine uploads to tolerate; the maximum, (r - 3) / 2 of '
    'r uploads, if not given.',
    When(aggregator=('krum', 'multi_krum')),
  )
  num_selected: int | None = integer(
    None,
    'Number of uploads to average; r - f if not given.',
    When(aggregator=('multi_krum',)),
  )
  ida_reference: str = choice(
    'mean',
    choices.IDA_REFERENCES,
    'Model that distances are measured from, the plain or the size-weighted '
    'mean of the uploads.',
    _IDA,
  )
  ida_norm: str = choice('l2', choices.IDA_NORMS, 'Norm of distances.', _IDA)
  astw_base: float = real(
    math.e / 2, 'Factor by which an upload loses weight per round.', _ASTW
  )
  astw_layerwise: bool | None = boolean(
    None,
    'Exchange deep layers in every third round only; on in astw and off in '
    'astw_safl if not given.',
    _ASTW,
  )
  fedma_matching: str = choice(
    'hungarian',
    choices.FEDMA_MATCHINGS,
    'Matching of units; bbp may widen layers.',
    _FEDMA,
  )
  fedma_schedule: str = choice(
    'layerwise',
    choices.FEDMA_SCHEDULES,
    'Match one layer per round or all at once.',
    _FEDMA,
  )
  fedma_average: str = choice(
    'mean',
    choices.FEDMA_AVERAGES,
    'Average of matched units; map shrinks the mean to its prior.',
    _FEDMA,
  )
  fedma_gamma: float = real(
    7.0,
    'Concentration; a larger value adds more units.',
    When(algorithm=('fedma',), fedma_matching=('bbp',)),
  )
  server_optimizer: str = choice(
    'none',
    ('none', *choices.SERVER_OPTIMIZERS),
    'Optimizer that treats the change of the global model as a gradient.',
    When(algorithm=Others(['local_only', 'fedma'])),
  )
  server_learning_rate: float | None = real(
    None,
    'Learning rate of the server; 1 for sgd and momentum, else 0.01.',
    When(server_optimizer=Others(['none'])),
  )
  server_beta_1: float = real(
    0.9,
    'Momentum of the server optimizer.',
    When(server_optimizer=('momentum', 'adagrad', 'adam', 'yogi')),
  )
  server_beta_2: float = real(
    0.99,
    'Second-moment decay of the server optimizer.',
    When(server_optimizer=('adam', 'yogi')),
  )
  server_tau: float = real(
    1e-3,
    'Adaptivity of the server optimizer; a larger value adapts less.',
    When(server_optimizer=('adagrad', 'adam', 'yogi')),
  )


@dataclasses.dataclass(frozen=True)
class Attack(Group, topic='attack'):
  """Malicious clients."""

  attack: str = choice(
    'none', choices.ATTACKS, 'Behaviour of malicious clients.'
  )
  attack_fraction: float = real(
    0.2, 'Fraction of the clients that are malicious.', _ATTACKED
  )
  attack_strength: float = real(
    1.0,
    'Factor of sign_flip and scale, standard deviation of noise.',
    When(attack=('sign_flip', 'scale', 'noise')),
  )


def _digest(path: str) -> str:
  return hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()


def check_keras_file(path: str) -> None:
  """Refuses a path that cannot be a .keras file, without importing Keras."""
  if not os.path.isfile(path):
    raise errors.InputError('model', path, 'there is no such file')
  if not zipfile.is_zipfile(path):
    hint = 'must be a .keras file saved by Keras 3'
    raise errors.InputError('model', path, hint)
