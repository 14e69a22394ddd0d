"""The server's side of Flower: a SuperLink, a run on it, and its Grid.

If the SuperLink dies, it is started again, with a new run: what counts is in
the server's checkpoints and with the clients, not in Flower's run.
"""

import contextlib
import pathlib
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import httpx
from absl import logging
from flwr.common.serde import fab_to_proto, run_from_proto
from flwr.proto.control_pb2 import RegisterNodeRequest, StartRunRequest
from flwr.proto.runtime_pb2 import PullTaskInputRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.control.control_http_client import ControlHttpClient
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.interceptors.http.utils import add_headers
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.superlink.grid import HttpGrid

from safl_tf.deployment import certificates, transport
from safl_tf.deployment.flower import (
  environment,
  fab,
  grid_transport,
  superlink,
  tasks,
)
from safl_tf.util import atomic_io, errors, validation

_START_SECONDS = 60.0
_MIN_TTL = 600.0  # seconds after which Flower forgets a message
_T = TypeVar('_T')


class _OwnerInterceptor:
  """Shows the SuperLink that a request is this server's."""

  def __init__(self, secret: bytes):
    self._headers = {superlink.SECRET_HEADER: secret.decode()}

  def intercept(
    self, context: Any, call_next: Callable[[Any], httpx.Response]
  ) -> httpx.Response:
    """Adds the secret to a request."""
    add_headers(context.request, self._headers)
    return call_next(context)


class _Grid(HttpGrid):
  """A Grid whose requests are those of a `tasks.Tasks`."""

  def __init__(self, address: str, token: str, client: RuntimeHttpClient):
    super().__init__(address, insecure=True, token=token)
    self._client = client


class Link:
  """A transport that keeps a SuperLink running; close it after use.

  Args:
    address: where nodes connect.
    security: of these connections.
    home: a folder for Flower's files.
    round_timeout: seconds that clients have to answer in a round.
  """

  def __init__(
    self,
    address: validation.Address,
    security: certificates.Security,
    home: pathlib.Path,
    round_timeout: float,
  ):
    self._address = address
    self._security = security
    self._home = home
    self._ttl = max(_MIN_TTL, 4 * round_timeout)
    self._process: subprocess.Popen[bytes] | None = None
    self._heartbeat: HeartbeatSender | None = None
    self._transport: grid_transport.GridTransport | None = None
    self._bytes = (0, 0)  # of transports before this one

  def open(self) -> None:
    """Starts the SuperLink and a run on it."""
    private = f'{environment.HOST}:{self._start()}'
    owner = _OwnerInterceptor(self._secret)
    with contextlib.closing(
      ControlHttpClient.from_server_address(private, True, None, [owner])
    ) as control:
      self._wait(control)
      clients = self._register(control)
      app = fab.create()
      control.StartRun(StartRunRequest(fab=fab_to_proto(app)))
    grid = self._run_app(private, owner)
    self._transport = grid_transport.GridTransport(grid, self._ttl, clients)

  def close(self) -> None:
    """Ends the SuperLink."""
    if self._transport is not None:
      self._bytes = (self.bytes_up, self.bytes_down)
      self._transport.grid.close()  # type: ignore[attr-defined]
      self._transport = None
    if self._heartbeat is not None:
      tasks.end_heartbeat(self._heartbeat)
      self._heartbeat = None
    if self._process is not None:
      environment.stop(self._process)
      self._process = None

  @property
  def bytes_up(self) -> int:
    """See `transport.Transport`."""
    now = 0 if self._transport is None else self._transport.bytes_up
    return self._bytes[0] + now

  @property
  def bytes_down(self) -> int:
    """See `transport.Transport`."""
    now = 0 if self._transport is None else self._transport.bytes_down
    return self._bytes[1] + now

  def addresses(self) -> Sequence[int]:
    """See `transport.Transport`."""
    return self._guarded(lambda carrier: carrier.addresses())

  def client_of(self, address: int) -> int | None:
    """See `transport.Transport`."""
    assert self._transport is not None
    return self._transport.client_of(address)

  def send(self, address: int, data: bytes) -> str:
    """See `transport.Transport`."""
    return self._guarded(lambda carrier: carrier.send(address, data))

  def receive(self, tokens: Sequence[str]) -> list[transport.Reply]:
    """See `transport.Transport`."""
    return self._guarded(lambda carrier: carrier.receive(tokens))

  def _guarded(self, call: Callable[[grid_transport.GridTransport], _T]) -> _T:
    """Starts the SuperLink again if it has died."""
    assert self._transport is not None
    try:
      return call(self._transport)
    except httpx.HTTPError as error:
      cause = errors.reason(error)
      self.close()
      self.open()
      raise transport.LostError(
        f'the SuperLink was lost ({cause}) and started again'
      ) from error

  def _start(self) -> int:
    """Starts the process; returns its port on this machine."""
    self._home.mkdir(parents=True, exist_ok=True)
    secret_file = self._home / 'secret'
    self._secret = environment.write_secret(secret_file)
    port = environment.free_port()
    certificate, key = self._security.certificate, self._security.key
    settings = {
      'host': self._address.host,
      'port': self._address.port,
      'private_port': port,
      'secret_file': str(secret_file),
      'certificate': certificate and str(certificate),
      'key': key and str(key),
      'authenticate': self._security.client_keys is not None,
    }
    self._process = environment.start(
      'superlink',
      [atomic_io.to_json(settings, None)],
      self._home,
    )
    return port

  def _wait(self, control: ControlHttpClient) -> None:
    """Waits until the SuperLink serves."""
    assert self._process is not None
    end = time.monotonic() + _START_SECONDS
    while True:
      with contextlib.suppress(httpx.TransportError):
        control._client.get(f'{control._base_url}/health', timeout=2)
        return
      if self._process.poll() is not None or time.monotonic() > end:
        last = environment.last_error(self._home, 'superlink')
        raise errors.RunError(
          f'the SuperLink did not start at {self._address}: {last} (its log is '
          f'in {self._home})'
        )
      time.sleep(0.1)

  def _register(self, control: ControlHttpClient) -> dict[int, int] | None:
    """Registers the clients' keys; returns node -> client."""
    keys = self._security.client_keys
    if keys is None:
      return None
    nodes = {}
    for k, key in keys.items():
      response = control.RegisterNode(RegisterNodeRequest(public_key=key))
      nodes[response.node_id] = k
    return nodes

  def _run_app(self, private: str, owner: _OwnerInterceptor) -> _Grid:
    """Takes the run's task, as the ServerApp; returns its Grid."""
    kind = TaskType.SERVER_APP
    with contextlib.closing(
      tasks.Tasks(private, self._secret, kind, [owner])
    ) as pending:
      acquired = pending.acquire()
      if acquired is None:
        raise errors.RunError('the SuperLink has not started the run')
      client = pending.client(acquired.token)
    self._heartbeat = tasks.heartbeat(client)
    task = client.PullTaskInput(PullTaskInputRequest())
    tasks.set_identity(task)
    grid = _Grid(private, acquired.token, client)
    grid.set_run(run_from_proto(task.run))
    return grid


@contextlib.contextmanager
def connected(
  address: validation.Address,
  security: certificates.Security,
  home: pathlib.Path,
  round_timeout: float,
) -> Iterator[Link]:
  """Yields a `Link` that is open, and closes it.

  Warns if the connections are not secure; arguments are those of `Link`.
  """
  if security.certificate is None:
    logging.warning(
      'without --tls_certificate models travel in the clear, and anybody who '
      'reaches %s can take part; use it on a network of your own only',
      address,
    )
  elif security.client_keys is None:
    logging.warning(
      'without --client_keys anybody who reaches %s can take part', address
    )
  link = Link(address, security, home, round_timeout)
  try:
    link.open()
    logging.info(
      'listening at %s (%s)',
      address,
      'plain HTTP' if security.certificate is None else 'TLS',
    )
    yield link
  finally:
    link.close()
