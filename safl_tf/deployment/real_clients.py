"""Real clients in Python: a server and clients with models and rules of users.

`train` takes the place of `safl_tf.train` on the server, `run_client` trains on
a client. Both import the model, the rules and the configuration from the same
code; a client whose settings differ is refused by name. Programs do without
code: see `safl-server` and `safl-client`.
"""

import contextlib
import os
import pathlib
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import keras

from safl_tf.algorithms import safl
from safl_tf.core import algorithm as algorithm_lib
from safl_tf.core import (
  checked,
  client_config,
  client_trainer,
  flat_model,
  task_resolution,
)
from safl_tf.core import process as process_lib
from safl_tf.core import task as task_lib
from safl_tf.data import client_data, client_file
from safl_tf.deployment import client as client_lib
from safl_tf.deployment import record as record_lib
from safl_tf.deployment import remote_data
from safl_tf.deployment import server as server_lib
from safl_tf.training import callbacks as callbacks_lib
from safl_tf.training import loop
from safl_tf.util import choices, errors, output_folder, validation

Path = str | os.PathLike[str]

# Arguments of `safl_tf.train` that are about simulated clients.
_SIMULATED = (
  'clients',
  'executor',
  'device',
  'stack',
  'client_store',
  'attack',
  'test_clients',
  'eval_clients_every',
  'personalize_steps',
  'checkpoint_every',
  'client_table',
)


def train(
  model: keras.Model | flat_model.ModelFn,
  num_clients: int,
  algorithm: algorithm_lib.Algorithm | None = None,
  *,
  address: str = '127.0.0.1:9092',
  tls_certificate: Path | None = None,
  tls_key: Path | None = None,
  client_keys: Path | None = None,
  missing: str = 'wait',
  round_timeout: float = 600.0,
  max_wait: float = 86400.0,
  seed: int = 0,
  output_dir: str | pathlib.Path | None = None,
  callbacks: callbacks_lib.Given = (),
  **options: Any,
) -> loop.Result:
  """Trains a Keras model with real clients: `safl_tf.train` without data.

  Args:
    model: see `safl_tf.train`; clients have the same.
    num_clients: n; the numbers of clients are 0 to n - 1.
    algorithm: SAFL by default; clients have the same.
    address: HOST:PORT to listen at.
    tls_certificate: file with the server's certificate; plain HTTP without.
    tls_key: file with its private key.
    client_keys: folder with client_0.pub, client_1.pub, ...
    missing: 'wait' for clients that do not answer, or 'drop' them.
    round_timeout: seconds that clients have to answer in a round.
    max_wait: seconds without a result from any client after which to give up.
    seed: of the run.
    output_dir: see `safl_tf.train`; the same call resumes.
    callbacks: see `safl_tf.train`.
    **options: others of `safl_tf.train`, except those about clients' data and
      how they are simulated.

  Returns:
    The result; its clients' models are with the clients.

  Raises:
    InputError: an argument is invalid or only for simulated clients.
    RunError: no client has answered for `max_wait` seconds.

  Example:
    ```python
    from safl_tf.deployment import real_clients

    result = real_clients.train(
      model_fn, num_clients=1, algorithm=safl_tf.build_safl(), rounds=2,
      test_data=(x_test, y_test), address='0.0.0.0:9092')
    ```
  """
  for name in options.keys() & set(_SIMULATED):
    hint = 'is for simulated clients'
    raise errors.InputError(name, str(options[name]), hint)
  if algorithm is not None:
    server_lib.check_algorithm(algorithm)
  validation.limited('num_clients', num_clients)
  validation.limited('round_timeout', round_timeout)
  validation.limited('max_wait', max_wait)
  validation.choice('missing', missing, choices.MISSING)
  where = validation.parse_address('address', address)
  validation.installed('address', address, 'flower', 'flwr')
  from safl_tf.deployment import certificates

  security = certificates.load(
    _path(tls_certificate), _path(tls_key), _path(client_keys), num_clients
  )
  server_options = server_lib.Options(round_timeout, missing, max_wait)
  record = None
  if output_dir is not None:
    options['checkpoint_every'] = 1  # clients go back one round at most
    record = record_lib.read(pathlib.Path(output_dir), 'output_dir')
  with contextlib.ExitStack() as stack:
    home = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
    from safl_tf.deployment.flower import environment

    environment.restrict(os.environ, home)
    from safl_tf.deployment.flower import link

    transport = stack.enter_context(
      link.connected(where, security, home, round_timeout)
    )
    server = server_lib.Server(transport, num_clients, server_options)
    record = server.enrol(record)
    result = loop.train(
      model,
      remote_data.create(record),
      algorithm,
      executor=server,
      seed=seed,
      output_dir=output_dir,
      callbacks=[_Begin(server, record, seed), *callbacks],
      **options,
    )
    server.finish()
  return result


class _Begin(callbacks_lib.Callback):
  """Tells a server of its process, and writes the record of the run."""

  def __init__(
    self, server: server_lib.Server, record: record_lib.Record, seed: int
  ):
    self._server = server
    self._record = record
    self._seed = seed

  def on_train_begin(self, run: callbacks_lib.RunInfo) -> None:
    """See the class."""
    if run.path is not None:
      record_lib.write(run.path, self._record)
    process = run.process
    settings = _settings(process.algorithm, process.config, process.task)
    self._server.begin(process, settings, self._seed)


def run_client(
  client: int,
  data: client_data.ClientData,
  model: keras.Model | flat_model.ModelFn,
  algorithm: algorithm_lib.Algorithm | None = None,
  *,
  server: str,
  state_dir: Path,
  root_certificates: Path | None = None,
  key: Path | None = None,
  config: client_config.LocalConfig | None = None,
  jit_compile: str = 'auto',
  device: str = 'auto',
  loss: Any = None,
  metrics: Sequence[Any] | None = None,
  score: Any = None,
  class_weight: Mapping[int, float] | None = None,
  from_logits: bool | None = None,
  max_wait: float = 86400.0,
  once: bool = False,
) -> None:
  """Trains with the data of this machine when a server asks for it.

  What the client keeps between rounds is in a file of `state_dir`: the same
  call goes on after any interruption.

  Args:
    client: its number, k.
    data: one client, with the classes of all.
    model: that of the server.
    algorithm: that of the server.
    server: its HOST:PORT.
    state_dir: a folder of this client alone.
    root_certificates: file with those that sign the server's; plain HTTP
      without.
    key: file with the private key of this client.
    config: that of the server.
    jit_compile: see `safl_tf.train`.
    device: see `safl_tf.train`.
    loss: that of the server, as are metrics, score, class_weight and
      from_logits.
    metrics: see loss.
    score: see loss.
    class_weight: see loss.
    from_logits: see loss.
    max_wait: seconds without the server after which to give up.
    once: whether to return when a run is complete.

  Raises:
    RunError: the server refuses this client, or cannot be verified.

  Example:
    ```python
    from safl_tf.deployment import real_clients

    data = safl_tf.ClientData.from_clients({'berlin': (x, y)}, num_classes=3)
    real_clients.run_client(
      0, data, model_fn, safl_tf.build_safl(),
      server='a.example.org:9092', state_dir='state')
    ```
  """
  validation.limited('client', client)
  validation.limited('max_wait', max_wait)
  address = validation.parse_address('server', server)
  if data.num_clients != 1:
    raise errors.InputError('data', f'{data.num_clients} clients', 'must be 1')
  validation.installed('server', server, 'flower', 'flwr')
  from safl_tf.deployment import certificates

  authority, own_key = _path(root_certificates), _path(key)
  certificates.check_client(authority, own_key)
  algorithm = safl.build_safl() if algorithm is None else algorithm
  rules = checked.rules(algorithm)
  local = checked.config(algorithm, config or client_config.LocalConfig())
  task = process_lib.task_options(
    loss, metrics, score, class_weight, from_logits
  )

  def build(
    job: client_lib.Job,
    clients: client_data.ClientData,
    file: client_file.ClientFile,
    model_file: pathlib.Path | None,
  ) -> client_trainer.ClientTrainer:
    del file, model_file
    trainer = client_trainer.ClientTrainer(
      model,
      clients,
      rules,
      local,
      'serial',
      jit_compile,
      device,
      options=task,
    )
    mine = _settings(algorithm, local, trainer.task)
    for name in sorted(mine.keys() | job.settings.keys()):
      own, theirs = mine.get(name), job.settings.get(name)
      if own != theirs:
        raise errors.InputError(name, own, f'the server has {theirs}')
    return trainer

  folder = _path(state_dir)
  assert folder is not None
  home = folder / 'flower'
  with output_folder.opened(folder, 'client', 'state_dir'):
    home.mkdir(exist_ok=True)
    from safl_tf.deployment.flower import environment

    environment.restrict(os.environ, home)
    from safl_tf.deployment.flower import node, resident

    facts = client_file.Facts.of(
      'own_data', _task_name(data), data, data.num_classes, {}
    )
    own = client_file.of_client(data, facts, 0)._replace(client=client)
    resident.run(
      client_lib.Client(client, own, folder, build),
      node.Server(address, authority, own_key),
      home,
      max_wait,
      once,
    )


def _settings(
  algorithm: algorithm_lib.Algorithm,
  config: client_config.LocalConfig,
  task: task_lib.Task,
) -> dict[str, Any]:
  """Returns in what a client must agree with the server, for readers."""
  return {
    'algorithm': algorithm.name,
    'rules': repr(algorithm),
    **{name: str(value) for name, value in vars(config).items()},
    **{f'task {k}': str(v) for k, v in task_resolution.to_json(task).items()},
  }


def _task_name(data: client_data.ClientData) -> str:
  """Returns a name for what the targets are."""
  if data.num_classes is not None:
    return 'classification' if data.y.ndim == 1 else 'tokens'
  return 'regression'


def _path(path: Path | None) -> pathlib.Path | None:
  return None if path is None else pathlib.Path(path).expanduser()
