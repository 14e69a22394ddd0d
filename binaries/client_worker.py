"""The trainer of safl-client: keeps the compiled model, answers the server."""

import os
import pathlib
from typing import Any

from absl import flags as absl_flags
from absl import logging

from safl_tf.util import errors, hardware, output_folder, validation

from . import client, program
from .flags import client_data, deployment


def main(flags: absl_flags.FlagValues) -> None:
  """Trains when the server asks for it."""
  config = deployment.Client.get(flags)
  data = client_data.ClientExamples.get(flags)
  hardware.start_tensorflow()
  file = data.load()
  client.check(config, file.client)
  from safl_tf.deployment.flower import environment

  environment.restrict(os.environ, config.home)
  from safl_tf.deployment import client as client_lib
  from safl_tf.deployment.flower import node, resident

  assert config.client is not None and config.server is not None
  address = validation.parse_address('server', config.server)
  server = node.Server(
    address,
    deployment.path_of(config.root_certificates),
    deployment.path_of(config.key),
  )
  with output_folder.opened(config.folder, 'client', 'state_dir'):
    config.home.mkdir(exist_ok=True)
    size = len(file.examples.y) if file.examples else 0
    logging.info(
      'client %d: %d examples, server %s', config.client, size, config.server
    )
    trainer = client_lib.Client(
      config.client, file, config.folder, _builder(config)
    )
    resident.run(trainer, server, config.home, config.max_wait, config.once)


def _builder(own: deployment.Client) -> Any:
  """Returns what builds the trainer of a job."""
  from . import factories

  def build(
    job: Any, clients: Any, file: Any, model_file: pathlib.Path | None
  ) -> Any:
    settings = dict(job.settings)
    if model_file is not None:
      settings['model'] = str(model_file)
    elif str(settings.get('model')).endswith('.keras'):
      raise errors.InputError('model', settings['model'], 'was not sent')
    config = deployment.for_simulation(
      settings,
      job.num_clients,
      file.facts.name,
      device=own.device,
      custom_objects=own.custom_objects if model_file is not None else None,
    )
    dataset = factories.dataset_of(file.facts, clients.x, clients.y)
    config = factories.resolve_model(config, dataset)
    return factories.build_trainer(config, dataset, clients)

  return build


if __name__ == '__main__':
  from safl_tf.deployment.flower import environment

  environment.end_with_parent()
  program.run('safl-client', client.__doc__, client.define, main)
