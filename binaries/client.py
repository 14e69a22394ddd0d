r"""A client of safl-server: trains with the data of this machine.

The data never leave the machine; models do. What the client keeps between
rounds is in --state_dir: the same command goes on after any interruption.

  safl-client --client=0 --data=client_0.npz --server=fl.example.org:9092 \
    --state_dir=state --root_certificates=ca.pem --key=client_0.key

The program watches a trainer, which keeps the compiled model, and that watches
Flower's SuperNode, which speaks with the server.
"""

import functools
import sys
import time

from absl import flags as absl_flags

from safl_tf.util import errors, output_folder

from . import program
from .flags import client_data, deployment

_POLL = 0.2  # seconds between looks at the trainer


def main(flags: absl_flags.FlagValues) -> None:
  """Starts the trainer, and starts it again when it dies."""
  config = deployment.Client.get(flags)
  data = client_data.ClientExamples.get(flags)
  data.check_effects(flags)
  data.check()
  output_folder.check(config.folder, 'client', 'state_dir')
  from safl_tf.deployment.flower import environment, restarted

  worker = [sys.executable, '-m', f'{__package__}.client_worker']
  trainer = restarted.Restarted(
    'trainer',
    lambda: environment.start_program([*worker, *sys.argv[1:]], config.home),
    final=(0, 1, 2),
  )
  try:
    while (code := trainer.step()) is None:
      time.sleep(_POLL)
  finally:
    trainer.stop()
  sys.exit(code)  # it has said why


def define(flags: absl_flags.FlagValues) -> None:
  """Adds the flags of safl-client."""
  deployment.Client.define(flags)
  client_data.ClientExamples.define(flags)


def check(config: deployment.Client, number: int | None) -> None:
  """Refuses data that are those of another client."""
  if number not in (None, config.client):
    hint = f'has the data of client {number}'
    raise errors.InputError('client', config.client, f'--data {hint}')


cli = functools.partial(program.run, 'safl-client', __doc__, define, main)

if __name__ == '__main__':
  cli()
