"""What the world and the owner of a SuperLink reach of it."""

import asyncio

import pytest
from starlette import applications, responses, routing

from safl_tf.deployment.flower import superlink

SECRET = b'0123456789abcdef'


class App:
  """Notes what reaches it, and answers 200."""

  def __init__(self):
    self.reached = []

  async def __call__(self, scope, receive, send):
    self.reached.append(scope.get('path', scope['type']))
    if scope['type'] != 'lifespan':
      await responses.PlainTextResponse('hello')(scope, receive, send)


def call(app, path='/', headers=(), kind='http', method='POST'):
  """The status with which an app answers; None without an answer."""
  sent = []

  async def send(message):
    sent.append(message)

  async def receive():
    return {'type': 'http.request', 'body': b'', 'more_body': False}

  scope = {
    'type': kind,
    'asgi': {'version': '3.0'},
    'http_version': '1.1',
    'method': method,
    'scheme': 'http',
    'server': ('127.0.0.1', 80),
    'client': ('127.0.0.1', 1),
    'path': path,
    'raw_path': path.encode(),
    'root_path': '',
    'query_string': b'',
    'headers': [(b'host', b'127.0.0.1'), *headers],
  }
  asyncio.run(app(scope, receive, send))
  assert not sent or sent[0]['type'] in (
    'http.response.start',
    'websocket.close',
  )
  return sent[0].get('status') if sent else None


def test_nodes_reach_their_interface():
  app = App()
  for path in ('/v1/fleet/pull-messages', '/v1/fleet/'):
    assert call(superlink.OnlyNodes(app), path) == 200
  assert app.reached == ['/v1/fleet/pull-messages', '/v1/fleet/']


@pytest.mark.parametrize(
  'path',
  [
    '',
    '/',
    '/v1/fleet',
    '/v1/fleetx/pull',
    '/v1/control/start-run',
    '/v1/runtime/acquire-task',
    '/v1/Fleet/pull',
    '/V1/fleet/pull',
    '//v1/control',
    '//v1/fleet/pull',
    '/v1//fleet/pull',
    '/./v1/fleet/pull',
    '/v1/control/../fleet/pull',
    '/health',
    '/docs',
    '/openapi.json',
    '/v1%2Ffleet%2Fpull',
    '/v1/control/%2e%2e/fleet/pull',
    'http://127.0.0.1/v1/fleet/pull',
    '/x/v1/fleet/pull',
    '\\v1\\fleet\\pull',
  ],
)
def test_the_world_reaches_nothing_else(path):
  app = App()
  for method in ('GET', 'POST', 'OPTIONS', 'HEAD', 'CONNECT'):
    assert call(superlink.OnlyNodes(app), path, method=method) == 403
  assert not app.reached


@pytest.mark.parametrize('kind', ['websocket', 'lifespan', 'other'])
def test_the_world_reaches_nothing_in_another_way(kind):
  app = App()
  assert call(superlink.OnlyNodes(app), '/v1/fleet/pull', kind=kind) is None
  assert not app.reached


@pytest.mark.parametrize(
  'path',
  [
    '/v1/fleet/../control/start-run',
    '/v1/fleet/./../control/start-run',
    '/v1/fleet/%2e%2e/control/start-run',
    '/v1/fleet/..%2fcontrol/start-run',
    '/v1/fleet/..\\control/start-run',
    '/v1/fleet//v1/control/start-run',
    '/v1/fleet/\0/../control/start-run',
  ],
)
def test_no_path_leads_out(path):
  """Neither here nor in the routes of such an app."""
  reached = []

  async def start(request):
    reached.append(request.url.path)
    return responses.PlainTextResponse('started')

  app = applications.Starlette(
    routes=[
      routing.Route('/v1/control/start-run', start, methods=['POST']),
      routing.Route('/v1/fleet/pull', start, methods=['POST']),
    ]
  )
  assert call(superlink.OnlyNodes(app), path) in (403, 404)
  assert not reached
  assert call(superlink.OnlyNodes(app), '/v1/fleet/pull') == 200


def header(value, name=superlink.SECRET_HEADER):
  return [(name.encode(), value)]


def test_the_owner_reaches_everything():
  app = App()
  owner = superlink.OnlyOwner(app, SECRET)
  for path in ('/v1/control/start-run', '/v1/fleet/pull', '/'):
    assert call(owner, path, header(SECRET)) == 200
  assert len(app.reached) == 3


@pytest.mark.parametrize(
  'headers',
  [
    [],
    header(b''),
    header(SECRET[:-1]),
    header(SECRET + b'0'),
    header(SECRET.upper()),
    header('é'.encode()),
    header(SECRET, 'x-other-secret'),
    header(SECRET, 'authorization'),
    [*header(SECRET), *header(b'x')],
  ],
)
def test_others_than_the_owner_reach_nothing(headers):
  app = App()
  owner = superlink.OnlyOwner(app, SECRET)
  for path in ('/v1/control/start-run', '/v1/fleet/pull', '/health'):
    assert call(owner, path, headers) == 403
  assert call(owner, '/', headers, kind='websocket') is None
  assert not app.reached


def test_the_app_is_started():
  """By the server, whose messages have no headers."""
  app = App()

  async def start():
    await superlink.OnlyOwner(app, SECRET)({'type': 'lifespan'}, None, None)

  asyncio.run(start())
  assert app.reached == ['lifespan']
