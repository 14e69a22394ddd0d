r"""Trains a Keras model with real clients, each a safl-client, through Flower.

Clients keep their data and their own models; the server selects, aggregates
and tests. The run has the bits of safl-train on the same partition.

  safl-partition --num_clients=4 --export_clients=shards
  safl-server --num_clients=4 --data=shards/server.npz --rounds=10
  safl-client --client=0 --data=shards/client_0.npz \
    --server=127.0.0.1:9092 --state_dir=client_0      (and so on, 1 to 3)

  safl-server --make_certificates=certificates --num_clients=4 \
    --address=fl.example.org:9092                     (for TLS and keys)

All files of a run are in OUTPUT_DIR/EXPERIMENT. The same command resumes an
interrupted run.
"""

import functools
import os
import pathlib
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from absl import flags as absl_flags

from safl_tf.util import errors, hardware, validation

from . import program, train
from .flags import deployment

if TYPE_CHECKING:
  from safl_tf.core import process as process_lib
  from safl_tf.data import client_file
  from safl_tf.deployment import record as record_lib
  from safl_tf.deployment import server as server_lib


def main(flags: absl_flags.FlagValues) -> None:
  """Runs a server, or makes certificates."""
  if flags.make_certificates is not None:
    _make_certificates(flags)
    return
  start = time.perf_counter()
  config = deployment.ServerConfig.get(flags)
  config.directory().check()
  hardware.start_tensorflow()
  with program.locating(config.path):
    history, failure = _serve(config)
  train.print_summary(history, config.path, time.perf_counter() - start)
  if failure:
    raise errors.RunError(failure)


def _serve(
  config: deployment.ServerConfig,
) -> tuple[list[dict[str, Any]], str | None]:
  """Runs the rounds; returns the history and the error of the export."""
  from safl_tf.deployment import record as record_lib
  from safl_tf.deployment import server as server_lib
  from safl_tf.deployment.flower import environment

  file = None
  if config.data is not None:
    file = config.load()
  if config.model.endswith('.keras'):
    from . import factories

    factories.import_objects(config.custom_objects)
    factories.load_model(config.model)  # refused before clients are waited for
  directory = config.directory()
  home = config.path / 'flower'
  environment.restrict(os.environ, home)
  from safl_tf.deployment.flower import link

  assert config.num_clients is not None
  options = server_lib.Options(
    config.round_timeout, config.missing, config.max_wait
  )
  address = validation.parse_address('address', config.address)
  security = config.security()
  with (
    directory.opened(),
    link.connected(address, security, home, config.round_timeout) as transport,
  ):
    server = server_lib.Server(transport, config.num_clients, options)
    known = record_lib.read(config.path, 'experiment')
    record = server.enrol(known, file and file.facts)
    if known is None:
      record_lib.write(config.path, record)
    result = _train(config, server, record, file, directory)
    server.finish()
  return result.history, result.failure and f'--{result.failure}'


def _train(
  config: deployment.ServerConfig,
  server: 'server_lib.Server',
  record: 'record_lib.Record',
  file: 'client_file.ClientFile | None',
  directory: Any,
) -> Any:
  """Runs the rounds with the clients of a record."""
  from safl_tf.training import loop, outputs

  process = build_process(config, server, record, file)
  facts = record.facts
  model = None
  if config.model.endswith('.keras'):
    model = pathlib.Path(config.model).read_bytes()
  server.begin(process, config.settings(), config.seed, model)
  return loop.run(
    process,
    validation.call(loop.Schedule, config.to_dict()),
    config.seed,
    _test_data(file),
    directory,
    facts.metadata,
    outputs=outputs.Outputs(
      config.export,
      False,
      {'model': process.model.template.name, 'dataset': facts.name},
      config.figure_formats,
    ),
  )


def build_process(
  config: deployment.ServerConfig,
  server: 'server_lib.Server',
  record: 'record_lib.Record',
  file: 'client_file.ClientFile | None',
) -> 'process_lib.FederatedProcess':
  """Builds the process whose rounds clients run."""
  from safl_tf.deployment import remote_data

  from . import factories

  clients = remote_data.create(record)
  simulated = deployment.for_simulation(
    config.settings(),
    clients.num_clients,
    record.facts.name,
    custom_objects=config.custom_objects,
  )
  dataset = factories.dataset_of(record.facts, clients.x, clients.y)
  simulated = factories.resolve_model(simulated, dataset)
  return factories.build_remote_process(simulated, dataset, clients, server)


def _test_data(file: 'client_file.ClientFile | None') -> Any:
  """Returns (x, y) or (x, y, sample_weight) to test on; None without any."""
  if file is None or file.examples is None:
    return None
  x, y, w = file.examples.x, file.examples.y, file.examples.sample_weight
  return (x, y) if w is None else (x, y, w)


def _make_certificates(flags: Mapping[str, Any]) -> None:
  """Writes keys and certificates."""
  number = flags['num_clients'].value
  if number is None:
    raise errors.InputError('num_clients', '', 'is required; see --help')
  host = validation.parse_address('address', flags['address'].value).host
  given = flags['make_certificates'].value
  validation.installed('make_certificates', given, 'flower', 'cryptography')
  from safl_tf.deployment import certificates

  folder = pathlib.Path(given).expanduser()
  certificates.make(folder, host, number)
  print(f'for the server   {folder}/server.pem, server.key and public_keys/')
  print(f'for client K     {folder}/ca.pem and client_K.key')
  print(f'keep offline     {folder}/ca.key')


cli = functools.partial(
  program.run,
  'safl-server',
  __doc__,
  deployment.ServerConfig.define,
  main,
)

if __name__ == '__main__':
  cli()
