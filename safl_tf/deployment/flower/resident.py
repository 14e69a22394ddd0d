"""A client that stays: keeps its SuperNode running, and answers the server."""

import pathlib
import threading
import time

from absl import logging

from safl_tf.deployment import client as client_lib
from safl_tf.deployment.flower import environment, node, restarted
from safl_tf.util import errors

_POLL = 0.2  # seconds between looks at the SuperNode
_LOOK = 1.0  # seconds between looks for the server


def run(
  client: client_lib.Client,
  server: node.Server,
  home: pathlib.Path,
  max_wait: float,
  once: bool = False,
) -> None:
  """Answers the server until it refuses the client, or the run is complete.

  Args:
    client: answers the requests.
    server: where it is.
    home: the folder of `environment.restrict`, which has been called.
    max_wait: seconds without the server after which to give up.
    once: whether to end when a run is complete.

  Raises:
    errors.RunError: the server has refused the client, cannot be verified or is
      not there.
  """
  if server.root_certificates is None:
    logging.warning(
      'without --root_certificates the server is not verified, and models '
      'travel in the clear; use it on a network of your own only'
    )
  secret = environment.write_secret(home / 'secret')
  port = environment.free_port()
  connection = _Connection(server, home, port, max_wait)

  def handle(request: bytes) -> bytes:
    try:
      return client.handle(request)
    except client_lib.FinishedError:
      if once:
        raise
      logging.info('the run is complete; waiting for the next one')
      return b''

  try:
    node.work(handle, port, secret, connection.check)
  except client_lib.RefusedError as error:
    raise errors.RunError(f'the server has refused {error}') from error
  except client_lib.FinishedError:
    logging.info('the run is complete')
  finally:
    connection.close()


class _Connection:
  """Keeps a SuperNode running, in a thread.

  Args:
    server: see `run`.
    home: see `run`.
    port: of the SuperNode on this machine.
    max_wait: see `run`.
  """

  def __init__(
    self, server: node.Server, home: pathlib.Path, port: int, max_wait: float
  ):
    self._server = server
    self._max_wait = max_wait
    self._supernode = restarted.Restarted(
      'SuperNode',
      lambda: node.start(server, home, port),
      reason=lambda code: node.reason(home, code),
    )
    self._failure: errors.RunError | None = None
    self._since = time.monotonic()  # when the server was there
    self._next = 0.0  # when to look for it
    self._reported: str | None = None
    self._closed = threading.Event()
    self._thread = threading.Thread(target=self._keep, daemon=True)
    self._thread.start()

  def check(self) -> None:
    """Raises what has ended the connection for good."""
    if self._failure is not None:
      raise self._failure

  def close(self) -> None:
    """Ends the SuperNode."""
    self._closed.set()
    self._thread.join()

  def _keep(self) -> None:
    try:
      while not self._closed.wait(_POLL):
        self._supernode.step(self._find)
    except errors.RunError as error:
      self._failure = error
    finally:
      self._supernode.stop()

  def _find(self) -> bool:
    """Returns whether the server answers, and says so if that has changed."""
    now = time.monotonic()
    if now < self._next:
      return False
    self._next = now + _LOOK
    problem = node.problem(self._server)
    where = self._server.address
    if problem is None:
      if self._reported is not None:
        logging.info('found the server %s', where)
      self._since, self._reported = now, None
      return True
    if now - self._since > self._max_wait:
      raise errors.RunError(
        f'--server={where}: does not answer since {now - self._since:.0f} '
        f'seconds ({problem}; --max_wait)'
      )
    if problem != self._reported:
      self._reported = problem
      logging.warning('looking for the server %s (%s)', where, problem)
    return False
