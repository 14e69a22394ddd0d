"""The client's side of Flower: a SuperNode, and the ClientApp beside it."""

import contextlib
import http.client
import pathlib
import re
import ssl
import subprocess
import time
from collections.abc import Callable
from typing import NamedTuple

import httpx
from flwr.app import Context, Message
from flwr.app.error import Error
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode, SubStatus
from flwr.supercore.constant import TaskType
from flwr.supernode.runtime import run_clientapp

from safl_tf.deployment.flower import client_app, environment, tasks
from safl_tf.util import errors, validation

_POLL = 0.2  # seconds between looks for a task
_CONNECT_SECONDS = 5.0
_UNKNOWN_KEY = re.compile(r'code: (2001|2004)\b')  # of Flower's errors


class Server(NamedTuple):
  """The server, and how to know it.

  Attributes:
    address: of the SuperLink.
    root_certificates: a file with those that sign the server's certificate;
      None for plain HTTP.
    key: a file with the private key of this client, if it has one.
  """

  address: validation.Address
  root_certificates: pathlib.Path | None = None
  key: pathlib.Path | None = None


def problem(server: Server) -> str | None:
  """Asks a server for an answer; returns why there is none, if so.

  Raises:
    errors.RunError: its certificate is not signed as it must be.
  """
  connection = http.client.HTTPConnection(
    *server.address, timeout=_CONNECT_SECONDS
  )
  if server.root_certificates is not None:
    connection = http.client.HTTPSConnection(
      *server.address,
      timeout=_CONNECT_SECONDS,
      context=ssl.create_default_context(cafile=str(server.root_certificates)),
    )
  try:
    with contextlib.closing(connection):
      connection.request('GET', '/')
      connection.getresponse().read()
  except ssl.SSLError as error:
    reason = getattr(error, 'verify_message', '') or error.reason or error
    raise errors.RunError(
      f'--server={server.address}: cannot be verified with '
      f'--root_certificates={server.root_certificates} ({reason}); nothing '
      'was sent to it'
    ) from error
  except http.client.HTTPException:
    if server.root_certificates is None:
      return 'not plain HTTP; if it uses TLS, give --root_certificates'
    return 'not HTTP'
  except OSError as error:
    return error.strerror or errors.reason(error)
  return None


def start(
  server: Server, home: pathlib.Path, port: int
) -> subprocess.Popen[bytes]:
  """Starts the SuperNode.

  Args:
    server: to connect to.
    home: a folder for Flower's files; has the secret of `worker`.
    port: on this machine, for the ClientApp.
  """
  arguments = [
    f'--superlink={server.address}',
    '--isolation=process',
    f'--superexec-auth-secret-file={home / "secret"}',
    f'--port={port}',
  ]
  if server.root_certificates is None:
    arguments.append('--insecure')
  else:
    arguments.append(f'--root-certificates={server.root_certificates}')
  if server.key is not None:
    arguments.append(f'--auth-supernode-private-key={server.key}')
  return environment.start('supernode', arguments, home)


def reason(home: pathlib.Path, code: int) -> str:
  """Returns why the SuperNode has ended with an exit code."""
  if code == 0:
    return 'it has lost the server'
  last = environment.last_error(home, 'supernode')
  if _UNKNOWN_KEY.search(last):
    return (
      'the server does not accept the key of this client; after a lost '
      'connection that takes a minute'
    )
  return last


def work(
  handle: Callable[[bytes], bytes],
  port: int,
  secret: bytes,
  check: Callable[[], None],
) -> None:
  """Runs the tasks of a SuperNode, one after the other, without end.

  Args:
    handle: see `client_app.create`; what it raises ends the work, after a reply
      without content.
    port: of the SuperNode on this machine.
    secret: that it knows.
    check: called between tasks; what it raises ends the work.
  """
  app = client_app.create(handle)
  pending = tasks.Tasks(
    f'{environment.HOST}:{port}', secret, TaskType.CLIENT_APP
  )
  while True:
    check()
    try:
      acquired = pending.acquire()
      if acquired is not None:
        _run(app, pending, acquired.token)
    except httpx.HTTPError:
      acquired = None  # the SuperNode starts, or starts again
      time.sleep(1)
    if acquired is None:
      time.sleep(_POLL)


def _run(app: ClientApp, pending: tasks.Tasks, token: str) -> None:
  """Does one task."""
  with contextlib.closing(pending.client(token)) as client:
    beat = tasks.heartbeat(client)
    try:
      message, context, _, _ = run_clientapp.pull_task_input(client)
      ending: Exception | None = None
      try:
        reply = app(message=message, context=context)
      except Exception as error:
        ending, reply = error, _empty(message)
      _finish(client, reply, context)
      if ending is not None:
        raise ending
    finally:
      tasks.end_heartbeat(beat)


def _empty(message: Message) -> Message:
  """Returns a reply without content."""
  error = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, 'the client has ended')
  return Message(error, reply_to=message)


def _finish(client: object, reply: Message, context: Context) -> None:
  """Hands a reply to the SuperNode."""
  run_clientapp.push_message(client, reply, context)  # type: ignore[arg-type]
  run_clientapp.push_task_output(
    client,  # type: ignore[arg-type]
    context,
    SubStatus.COMPLETED,
    '',
  )
