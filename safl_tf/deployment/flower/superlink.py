"""A process that is Flower's SuperLink, with a restricted control path.

Flower serves three interfaces on one port: for nodes, for the control of runs
and for apps. Whoever reaches the second one can start runs. So this process
serves the first one alone to the world, and all of them to holders of a secret
on this machine.
"""

import asyncio
import json
import secrets
import sys
from typing import Any

import uvicorn
from flwr.superlink import config_loader
from flwr.superlink.cli.flower_superlink import SuperLinkLifespan
from flwr.superlink.main import create_app

from safl_tf.deployment.flower import environment

SECRET_HEADER = 'x-safl-secret'
_OF_NODES = '/v1/fleet/'


class OnlyNodes:
  """Serves the interface for nodes, and refuses all others."""

  def __init__(self, app: Any):
    self._app = app

  async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
    """Handles a request."""
    path = scope.get('path', '')
    if scope['type'] != 'http' or not path.startswith(_OF_NODES):
      await _refuse(scope, send)
      return
    await self._app(scope, receive, send)


class OnlyOwner:
  """Serves those who know a secret."""

  def __init__(self, app: Any, secret: bytes):
    self._app = app
    self._secret = secret

  async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
    """Handles a request, or the start and the end of the app."""
    if scope['type'] != 'lifespan':
      given = dict(scope['headers']).get(SECRET_HEADER.encode(), b'')
      if not secrets.compare_digest(given, self._secret):
        await _refuse(scope, send)
        return
    await self._app(scope, receive, send)


async def _refuse(scope: Any, send: Any) -> None:
  """Answers 403 Forbidden."""
  if scope['type'] != 'http':
    return
  headers = [(b'content-type', b'text/plain')]
  await send({'type': 'http.response.start', 'status': 403, 'headers': headers})
  await send({'type': 'http.response.body', 'body': b'forbidden\n'})


def main() -> None:
  """Serves until the parent ends; settings come on the command line."""
  environment.begin('superlink')
  settings = json.loads(sys.argv[1])
  with open(settings['secret_file'], 'rb') as file:
    secret = file.read()
  certificate = settings['certificate']
  config = config_loader.SuperLinkLifespanConfig(
    control_address='',
    health_server_address=None,
    host=environment.HOST,
    port=settings['private_port'],
    insecure=certificate is None,
    certificates=None,
    superexec_auth_secret=secret,
    authn_plugin=config_loader.load_control_authn_plugin(),
    event_log_plugin=None,
    fleet_event_log_plugin=None,
    enable_event_log=False,
    artifact_provider=None,
    enable_supernode_auth=settings['authenticate'],
    fleet_api_type='grpc-rere',
    fleet_api_address=None,
    simulation=False,
    ssl_ca_certfile=None,
    ssl_certfile=None,
    ssl_keyfile=None,
    database=':flwr-in-memory:',
    isolation='process',
    runtime_dependency_install=False,
  )
  app = create_app(config, SuperLinkLifespan)
  private = uvicorn.Config(
    OnlyOwner(app, secret),
    environment.HOST,
    settings['private_port'],
    access_log=False,
    log_config=None,
  )
  public = uvicorn.Config(
    OnlyNodes(app),
    settings['host'],
    settings['port'],
    lifespan='off',  # is that of the other server
    access_log=False,
    log_config=None,
    ssl_certfile=certificate,
    ssl_keyfile=settings['key'],
  )
  asyncio.run(_serve(uvicorn.Server(private), uvicorn.Server(public)))


async def _serve(*servers: uvicorn.Server) -> None:
  """Runs servers until one ends."""
  tasks = [asyncio.ensure_future(server.serve()) for server in servers]
  await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
  for server in servers:
    server.should_exit = True
  await asyncio.wait(tasks, timeout=5)


if __name__ == '__main__':
  main()
