"""The configuration of a training run: all flag groups together."""

import dataclasses
import os
import pathlib
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Self

from absl import flags as absl_flags

from safl_tf.data.files import spec
from safl_tf.util import choices, errors, validation

from . import data, group, partition, presets, training
from .conditions import Others, When
from .group import Group, boolean, choice, integer, real, text

if TYPE_CHECKING:
  from safl_tf.core.executors.ray import config as ray_config
  from safl_tf.training import run_directory


@dataclasses.dataclass(frozen=True)
class Run(Group, topic='run'):
  """The rounds, files and seed of a run."""

  rounds: int = integer(
    None, '[T] Communication rounds; 50 for mnist_sample, else 100.'
  )
  seed: int = group.seed()
  output_dir: str = text('runs', 'Folder that contains the runs.')
  experiment: str = text(
    None, 'Name of the run; ALGORITHM_DATASET if not given.'
  )
  eval_every: int = integer(1, 'Rounds between evaluations.')
  checkpoint_every: int = integer(5, 'Rounds between checkpoints.')
  keep_checkpoints: int = integer(2, 'Number of checkpoints to keep.')
  stop_at_accuracy: float | None = real(
    None, 'Test accuracy at which training stops.'
  )
  client_table: bool = boolean(
    False,
    "Write clients.csv: the accuracy of each client's own model and of the "
    'global model on the data of each client.',
  )
  export: str = choice(
    'both',
    choices.EXPORTS,
    'Formats to export the global model in; both is savedmodel and keras.',
  )

  @property
  def path(self) -> pathlib.Path:
    """The folder of the run."""
    return pathlib.Path(self.output_dir, self.experiment)

  def directory(self) -> 'run_directory.RunDirectory':
    """Returns the folder of the run without creating it."""
    from safl_tf.training import run_directory

    return run_directory.RunDirectory(
      self.path, self.to_dict(), self.keep_checkpoints, 'experiment'
    )

  def named(self, default: str) -> Self:
    """Returns the configuration with a checked name of the run."""
    name = default if self.experiment is None else self.experiment
    if name in ('', '.', '..') or '/' in name or '\\' in name:
      hint = 'must be the name of a folder, not a path'
      raise errors.InputError('experiment', name, hint)
    folder = os.path.expanduser(self.output_dir)
    return dataclasses.replace(self, experiment=name, output_dir=folder)


def _check_formats(name: str, value: str) -> None:
  check = lambda item: validation.choice(name, item, choices.FIGURES)
  group.parse_list(name, value, check)


@dataclasses.dataclass(frozen=True)
class Figures(Group, topic='run'):
  """The files of figures."""

  figures: str = text(
    'png',
    'Formats of figures, separated by commas. Any of '
    f'{", ".join(choices.FIGURES)}.',
    check=_check_formats,
  )

  @property
  def figure_formats(self) -> tuple[str, ...]:
    """The formats of figures."""
    return group.parse_list('figures', self.figures, str)


_TESTED = When(client_test_fraction=Others([None]))


@dataclasses.dataclass(frozen=True)
class ClientTests(Group, topic='evaluation on clients'):
  """Tests of models on examples of the clients' own."""

  client_test_fraction: float | None = real(
    None,
    'Fraction of the examples of each client that it does not train on and '
    'that models are tested on; no tests on clients if not given.',
  )
  eval_clients_every: int = integer(
    5, 'Rounds between tests on clients.', _TESTED
  )
  personalize_steps: int = integer(
    0,
    'Local steps of the global model on the examples of a client before it is '
    'tested there once more; 0 is without.',
    When(
      client_test_fraction=Others([None]),
      algorithm=Others(['centralized', 'local_only']),
    ),
  )


@dataclasses.dataclass(frozen=True)
class Hardware(Group, topic='hardware'):
  """The execution of clients on hardware; results do not depend on it."""

  executor: str = choice(
    'auto',
    choices.EXECUTORS,
    'Execution of the clients of a round; auto is threads on a CPU and '
    'vectorized on GPUs, ray runs them on the workers of a Ray cluster. All '
    'give the same results.',
  )
  stack: int | None = integer(
    None,
    'Number of clients per stack; determined by the available memory if not '
    'given.',
    When(executor=('auto', 'vectorized', 'ray')),
  )
  client_store: str = choice(
    'ram',
    choices.CLIENT_STORES,
    'Location of what clients keep and upload; mmap is a temporary file in the '
    'folder of the run, for models that exceed the memory.',
  )
  jit_compile: str = choice(
    'auto',
    choices.JIT_COMPILES,
    'Whether to compile training with XLA; auto decides by the layers. Wide '
    '3x3 convolutions are then computed by the algorithm of Winograd, with '
    'larger rounding errors than native ones.',
  )
  device: str = text('auto', 'auto, cpu, gpu (all GPUs) or one, such as gpu:1.')
  mixed_precision: str = choice(
    'none',
    choices.MIXED_PRECISIONS,
    'Compute precision of the model.',
    When(model=Others(['FILE.keras'])),
  )


_RAY = When(executor=('ray',))


@dataclasses.dataclass(frozen=True)
class Ray(Group, topic='Ray'):
  """The workers of --executor=ray; results do not depend on them."""

  ray_address: str = text(
    'local',
    'Ray cluster to run clients on: local starts Ray on this machine; auto, or '
    'the HOST:PORT of a head, joins the cluster that this machine is a node '
    'of.',
    _RAY,
    validation.ray_address,
  )
  ray_workers: int | None = integer(
    None,
    'Number of workers; one per GPU, or one per node without GPUs, if not '
    'given.',
    _RAY,
  )
  ray_cpus_per_worker: int | None = integer(
    None,
    'Number of clients that a worker trains at a time; the cores of a node '
    'divided by its workers if not given.',
    _RAY,
  )
  ray_gpus_per_worker: float | None = real(
    None,
    'GPUs per worker, such as 0.5 to share them; 1 if not given and the '
    'cluster has GPUs.',
    _RAY,
  )
  ray_chunk: int | None = integer(
    None,
    'Number of clients per message to a worker; about four messages per worker '
    'and round if not given.',
    _RAY,
  )
  ray_timeout: float = real(
    120.0,
    'Seconds after which a worker that does not start or answer is lost, and '
    'after which a run without workers stops.',
    _RAY,
  )

  def ray_executor(self) -> 'ray_config.RayConfig':
    """Returns where workers run."""
    from safl_tf.core.executors.ray import config as ray_config

    fields = dataclasses.fields(ray_config.RayConfig)
    return ray_config.RayConfig(
      **{f.name: getattr(self, f'ray_{f.name}') for f in fields}
    )


@dataclasses.dataclass(frozen=True)
class RunConfig(
  data.Data,
  partition.Partition,
  training.Model,
  training.Algorithm,
  training.LocalTraining,
  training.Objective,
  training.Aggregation,
  training.Attack,
  Run,
  ClientTests,
  Figures,
  Hardware,
  Ray,
):
  """All settings of a training run."""

  @classmethod
  def define(
    cls, flags: absl_flags.FlagValues, omit: Collection[str] = ()
  ) -> None:
    """Adds all flags of a run, grouped by topic, and --preset."""
    for base in cls.__bases__:
      assert issubclass(base, Group)
      if base is Run:
        presets.define(flags)
      base.define(flags, omit)

  @classmethod
  def get(cls, flags: absl_flags.FlagValues, **values: Any) -> Self:
    """Returns a checked configuration with all defaults filled in.

    `values` replace those of flags. Flags that contradict each other, have no
    effect or name missing files are refused.
    """
    config = cls.read(flags, **values)
    config.check_effects(flags)
    return config.resolve_data().resolve()

  @classmethod
  def read(cls, flags: absl_flags.FlagValues, **values: Any) -> Self:
    """Returns the values of flags as they are, with the data set's name."""
    config = super().get(flags, **values)
    config = dataclasses.replace(config, dataset=spec.check(config.dataset))
    name = config.partition or config.default_partition
    return dataclasses.replace(config, partition=name)

  def resolve(self) -> Self:
    """Fills in all defaults, also for flags that have no effect."""
    if self.executor == 'ray':
      validation.installed('executor', 'ray', extra='ray')
    config, dataset = self.without_unused(), self.dataset
    config = config.resolve_partition(dataset)
    config = config.resolve_selection(config.num_clients)
    config = config.resolve_model(dataset, config.has_images)
    rounds = config.rounds
    if rounds is None:
      rounds = 50 if dataset == 'mnist_sample' else 100
    config = config.named(f'{config.algorithm}_{spec.short_name(dataset)}')
    return dataclasses.replace(config, rounds=rounds)

  @classmethod
  def parse(cls, given: Mapping[str, Any], **values: Any) -> Self:
    """Returns the configuration of safl-train with these flags, by name.

    Flags that have no effect are passed over: a plan may give some to all runs.
    """
    flags = absl_flags.FlagValues()
    cls.define(flags)
    flags(['safl-train', *(f'--{name}={v}' for name, v in given.items())])
    return cls.read(flags, **values).resolve_data().resolve()
