"""Flags of safl-server and safl-client."""

import dataclasses
import os
import pathlib
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, ClassVar, Self

from absl import flags as absl_flags

from safl_tf.util import choices, errors, validation

from . import client_data, run_config, training
from .conditions import Others, When
from .group import Group, boolean, choice, folder, integer, real, text

if TYPE_CHECKING:
  from safl_tf.deployment import certificates

_WITH_TLS = When(tls_certificate=Others([None]))
# Algorithm -> why it cannot run on real clients.
_SIMULATED_ONLY = {
  'centralized': 'it trains on the data of all clients in one place',
  'local_only': 'its clients exchange nothing with a server',
  'fedma': 'it matches layers with the label counts of all clients, and its '
  'models change their shape',
}


def _check_file(name: str, value: str) -> None:
  if not os.path.isfile(os.path.expanduser(value)):
    raise errors.InputError(name, value, 'there is no such file')


def path_of(value: str | None) -> pathlib.Path | None:
  """Returns the path that a flag names, if it is given."""
  return None if value is None else pathlib.Path(value).expanduser()


@dataclasses.dataclass(frozen=True)
class Server(Group, topic='deployment'):
  """The connection with real clients."""

  num_clients: int | None = integer(
    None, '[n] Number of clients; their numbers are 0 to n - 1. Required.'
  )
  address: str = text(
    '127.0.0.1:9092',
    'HOST:PORT to listen at; 0.0.0.0:PORT for all interfaces of the machine.',
    check=validation.parse_address,
  )
  round_timeout: float = real(
    600.0, 'Seconds that clients have to answer in a round.'
  )
  missing: str = choice(
    'wait',
    choices.MISSING,
    'What happens with clients that do not answer in time: wait goes on '
    'waiting, drop ends the round without them.',
  )
  max_wait: float = real(
    86400.0, 'Seconds without a result from any client after which it gives up.'
  )
  tls_certificate: str | None = text(
    None, 'File with the certificate of the server, for TLS.', check=_check_file
  )
  tls_key: str | None = text(
    None,
    'File with the private key of the certificate.',
    _WITH_TLS,
    check=_check_file,
  )
  client_keys: str | None = folder(
    'Folder with the public keys of the clients, client_0.pub, client_1.pub, '
    '...; only their owners can connect, each as the client of its key.',
    _WITH_TLS,
  )
  make_certificates: str | None = text(
    None,
    'Folder to write a private certificate authority, a certificate for the '
    'host of --address and keys of the clients to; then the program ends.',
  )


@dataclasses.dataclass(frozen=True)
class ServerConfig(
  Server,
  client_data.ClientExamples,
  training.Model,
  training.Algorithm,
  training.LocalTraining,
  training.Objective,
  training.Aggregation,
  run_config.Run,
  run_config.Figures,
  run_config.Hardware,
):
  """All settings of a server."""

  # Fields that are no flags here: every round has a checkpoint, since clients
  # go back one round at most; clients run on their own hardware.
  FIXED: ClassVar[dict[str, Any]] = {
    'checkpoint_every': 1,
    'client_table': False,
    'executor': 'auto',
    'stack': None,
    'client_store': 'ram',
    'device': 'cpu',
  }

  @classmethod
  def define(
    cls, flags: absl_flags.FlagValues, omit: Collection[str] = ()
  ) -> None:
    """Adds all flags of a server, grouped by topic."""
    for base in cls.__bases__:
      assert issubclass(base, Group)
      base.define(flags, {*omit, *cls.FIXED})

  @classmethod
  def get(cls, flags: absl_flags.FlagValues, **values: Any) -> Self:
    """Returns a checked configuration with all defaults filled in."""
    config = super().get(flags, **{**cls.FIXED, **values})
    if config.num_clients is None:
      raise errors.InputError('num_clients', '', 'is required; see --help')
    reason = _SIMULATED_ONLY.get(config.algorithm)
    if reason is not None:
      hint = f'cannot run on real clients: {reason}; use safl-train'
      raise errors.InputError('algorithm', config.algorithm, hint)
    config.check_effects(flags)
    if config.data is not None:
      config.check()
    else:
      for name in ('eval_every', 'stop_at_accuracy', 'metrics'):
        if flags[name].present:
          hint = 'has no effect without --data'
          raise errors.InputError(name, flags[name].value, hint)
    if (config.tls_certificate is None) != (config.tls_key is None):
      hint = 'is required with --tls_certificate'
      raise errors.InputError('tls_key', '', hint)
    config = config.resolve_files()
    validation.installed('address', config.address, 'flower', 'flwr')
    config.security()
    config = config.resolve_selection(config.num_clients)
    rounds = 100 if config.rounds is None else config.rounds
    config = dataclasses.replace(config, rounds=rounds)
    return config.named(f'{config.algorithm}_deployed')

  def security(self) -> 'certificates.Security':
    """Returns the files of TLS and the clients' keys; refuses invalid ones."""
    from safl_tf.deployment import certificates

    return certificates.load(
      path_of(self.tls_certificate),
      path_of(self.tls_key),
      path_of(self.client_keys),
      self.num_clients or 0,
    )

  def settings(self) -> dict[str, Any]:
    """Returns what clients need to know, by name of the flag.

    Paths of the server are not: clients get the .keras file itself, and have
    the code of its layers themselves.
    """
    return {name: getattr(self, name) for name in _sent()}


def _sent() -> list[str]:
  """Returns the names of the settings that a server sends to its clients."""
  groups = (
    training.Model,
    training.Algorithm,
    training.LocalTraining,
    training.Objective,
    training.Aggregation,
  )
  names = [f.name for group in groups for f in dataclasses.fields(group)]
  names += ['jit_compile', 'mixed_precision']
  own = ('custom_objects', 'custom_objects_sha256', 'model_sha256')
  return [name for name in names if name not in own]


def for_simulation(
  settings: dict[str, Any], num_clients: int, name: str, **own: Any
) -> run_config.RunConfig:
  """Returns the configuration of safl-train that `factories` builds from.

  Args:
    settings: of `ServerConfig.settings`.
    num_clients: n.
    name: of the data.
    **own: settings of this machine.
  """
  for setting, value in settings.items():
    if setting not in _sent():
      raise errors.InputError(setting, value, 'is unknown here')
  return run_config.RunConfig(
    **{**settings, **own, 'dataset': name, 'num_clients': num_clients}
  )


@dataclasses.dataclass(frozen=True)
class Client(Group, topic='client'):
  """Who a client is, and where its server is."""

  client: int | None = integer(None, '[k] Number of this client. Required.')
  server: str | None = text(
    None, 'HOST:PORT of the server. Required.', check=validation.parse_address
  )
  state_dir: str | None = text(
    None,
    'Folder for what this client keeps between rounds. Required, and not to be '
    'lost.',
  )
  root_certificates: str | None = text(
    None,
    'File with the certificate authority of the server, for TLS.',
    check=_check_file,
  )
  key: str | None = text(
    None,
    'File with the private key of this client, client_K.key.',
    When(root_certificates=Others([None])),
    check=_check_file,
  )
  device: str = text('auto', 'auto, cpu, gpu or one, such as gpu:1.')
  custom_objects: str | None = training.custom_objects(
    "the server's .keras file"
  )
  max_wait: float = real(
    86400.0, 'Seconds without an answer of the server after which it gives up.'
  )
  once: bool = boolean(
    False, 'End after a finished run, instead of waiting for the next one.'
  )

  @classmethod
  def get(cls, flags: absl_flags.FlagValues, **values: Any) -> Self:
    """Returns checked values."""
    config = super().get(flags, **values)
    for name in ('client', 'server', 'state_dir'):
      if getattr(config, name) in (None, ''):
        raise errors.InputError(name, '', 'is required; see --help')
    validation.installed('server', config.server, 'flower', 'flwr')
    config.check_effects(flags)
    from safl_tf.deployment import certificates

    certificates.check_client(
      path_of(config.root_certificates), path_of(config.key)
    )
    return config

  @property
  def folder(self) -> pathlib.Path:
    """The state folder."""
    assert self.state_dir is not None
    return pathlib.Path(self.state_dir).expanduser().resolve()

  @property
  def home(self) -> pathlib.Path:
    """The folder for Flower's files."""
    return self.folder / 'flower'
