"""A client of safl-server: trains with the data of this machine.

The data never leave the machine; models do. What the client keeps between
rounds is in --state_dir: the same command goes on after any interruption.

  safl-client --client=0 --data=client_0.npz --server=fl.example.org:9092 \
    --state_dir=state --root_certificates=ca.pem --key=client_0.key

The program starts and watches two processes: Flower's SuperNode, which speaks
with the server, and a trainer, which keeps the compiled model.
"""

import functools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from absl import flags as absl_flags
from absl import logging

from safl_tf.util import errors, output_folder

from . import program
from .flags import client_data, deployment

_MAX_DELAY = 30.0  # seconds before a process that dies is started again
_QUICK = 60.0  # seconds after which a process counts as healthy
_LOOK = 1.0  # seconds between looks for the server
_POLL = 0.2  # seconds between looks at the processes


def main(flags: absl_flags.FlagValues) -> None:
  """Starts the processes, and starts them again when they die."""
  config = deployment.Client.get(flags)
  data = client_data.ClientExamples.get(flags)
  data.check_effects(flags)
  data.check()
  from safl_tf.deployment.flower import environment

  with output_folder.opened(config.folder, 'client', 'state_dir'):
    home = config.folder / 'flower'
    home.mkdir(exist_ok=True)
    environment.restrict(os.environ, home)
    environment.write_secret(home / 'secret')
    _supervise(config, environment.free_port())


def _supervise(config: deployment.Client, port: int) -> None:
  """Watches the processes until the trainer ends for good."""
  from safl_tf.deployment.flower import environment, node

  host, port_of_server = deployment.parse_address('server', config.server or '')
  server = node.Server(
    host,
    port_of_server,
    deployment.path_of(config.root_certificates),
    deployment.path_of(config.key),
  )
  if server.root_certificates is None:
    logging.warning(
      'without --root_certificates the server is not verified, and models '
      'travel in the clear; use it on a network of your own only'
    )
  home = config.folder / 'flower'
  worker = f'{__package__}.client_worker'
  command = [sys.executable, '-m', worker, str(port), *sys.argv[1:]]
  trainer = _Part(
    'trainer', lambda: environment.start_program(command, home), (0, 1, 2)
  )
  supernode = _Part(
    'SuperNode',
    lambda: node.start(server, home, port),
    reason=lambda code: node.reason(home, code),
  )
  search = _Search(config, lambda: node.problem(server))
  try:
    while True:
      code = trainer.step()
      if code in trainer.final:
        sys.exit(code)  # it has said why
      if code is not None:
        supernode.stop()  # it waits for the reply of the lost trainer
      if supernode.is_running or (supernode.is_due and search.step()):
        supernode.step()
      time.sleep(_POLL)
  finally:
    trainer.stop()
    supernode.stop()


class _Part:
  """A process that is started again when it dies.

  Attributes:
    final: exit codes with which it ends for good.

  Args:
    name: for messages.
    start: starts it.
    final: see above.
    reason: says why it has ended, from its exit code.
  """

  def __init__(
    self,
    name: str,
    start: Callable[[], subprocess.Popen[bytes]],
    final: Sequence[int] = (),
    reason: Callable[[int], str] | None = None,
  ):
    self.final = final
    self._name = name
    self._start = start
    self._reason = reason
    self._process: subprocess.Popen[bytes] | None = None
    self._began = self._due = self._delay = 0.0

  @property
  def is_running(self) -> bool:
    """Whether it has been started and has not been seen to end."""
    return self._process is not None

  @property
  def is_due(self) -> bool:
    """Whether it is time to start it."""
    return time.monotonic() >= self._due

  def step(self) -> int | None:
    """Starts it if that is due; returns its exit code when it has ended."""
    if self._process is None:
      if self.is_due:
        self._process, self._began = self._start(), time.monotonic()
      return None
    code = self._process.poll()
    if code is None:
      return None
    self.stop()
    if code in self.final:
      return code
    is_quick = time.monotonic() - self._began < _QUICK
    self._delay = min(_MAX_DELAY, 2 * self._delay + 1) if is_quick else 0.0
    self._due = time.monotonic() + self._delay
    how = f'signal {-code}' if code < 0 else f'exit code {code}'
    if code >= 0 and self._reason is not None:
      how = self._reason(code)
    logging.warning('the %s ended (%s); starting it again', self._name, how)
    return code

  def stop(self) -> None:
    """Ends it."""
    if self._process is not None:
      from safl_tf.deployment.flower import environment

      environment.stop(self._process)
      self._process = None


class _Search:
  """Looks for the server, and says so.

  Args:
    config: of the client.
    problem: returns why the server does not answer, if so.
  """

  def __init__(
    self, config: deployment.Client, problem: Callable[[], str | None]
  ):
    self._config = config
    self._problem = problem
    self._since = time.monotonic()  # when the server was there
    self._next = 0.0
    self._said: str | None = None

  def step(self) -> bool:
    """Returns whether the server answers; gives up after --max_wait."""
    now = time.monotonic()
    if now < self._next:
      return False
    self._next = now + _LOOK
    problem, server = self._problem(), self._config.server
    if problem is None:
      if self._said is not None:
        logging.info('found the server %s', server)
      self._since, self._said = now, None
      return True
    if now - self._since > self._config.max_wait:
      raise errors.RunError(
        f'--server={server}: does not answer since {now - self._since:.0f} '
        f'seconds ({problem}; --max_wait)'
      )
    if problem != self._said:
      self._said = problem
      logging.warning('looking for the server %s (%s)', server, problem)
    return False


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
