"""Clients in this process, behind Flower's own Grid."""

import dataclasses
import itertools
import pathlib

from flwr.app import Context, Message, RecordDict
from flwr.app.error import Error
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from safl_tf.core import client_trainer
from safl_tf.core import process as process_lib
from safl_tf.data import client_file
from safl_tf.deployment import client as client_lib
from safl_tf.deployment import remote_data
from safl_tf.deployment import server as server_lib
from safl_tf.deployment.flower import client_app, grid_transport
from tests import tiny, tiny_rounds

SERVER_NODE = 1
QUICK = server_lib.Options(round_timeout=60, poll=0.0, max_wait=5)


class LoopbackGrid(Grid):
  """Calls ClientApps when their replies are pulled.

  Attributes:
    apps: node -> its ClientApp.
    drop: called with (node, reply); a reply for which it is true is lost.
  """

  def __init__(self):
    TaskIdentity.task_id = TaskIdentity.run_id = 1
    TaskIdentity.node_id = SERVER_NODE
    self.apps: dict[int, ClientApp] = {}
    self.messages: dict[str, Message] = {}
    self.drop = lambda node, reply: False
    self._new = itertools.count(1)

  def set_run(self, run: Run) -> None:
    raise NotImplementedError

  @property
  def run(self) -> Run:
    raise NotImplementedError

  def create_message(self, *args, **kwargs):
    raise NotImplementedError

  def get_node_ids(self):
    return list(self.apps)

  def push_messages(self, messages):
    ids = []
    for message in messages:
      token = f'message {next(self._new)}'
      message.metadata.__dict__['_message_id'] = token
      self.messages[token] = message
      ids.append(token)
    return ids

  def pull_messages(self, message_ids):
    replies = []
    for token in message_ids:
      message = self.messages.pop(token, None)
      if message is None:
        continue
      reply = self._answer(message)
      if not self.drop(message.metadata.dst_node_id, reply):
        replies.append(reply)
    return replies

  def send_and_receive(self, messages, *, timeout=None):
    raise NotImplementedError

  def _answer(self, message):
    node = message.metadata.dst_node_id
    app = self.apps.get(node)
    if app is None:
      return Message(Error(5, 'the node is gone'), reply_to=message)
    context = Context(1, node, {}, RecordDict(), {})
    TaskIdentity.node_id = node
    try:
      return app(message, context)
    except Exception as error:
      return Message(Error(8, str(error)), reply_to=message)
    finally:
      TaskIdentity.node_id = SERVER_NODE


@dataclasses.dataclass
class Federation:
  """A server and its clients.

  Args:
    folder: for the clients' state.
    clients: the data of all.
    options: of the server.
    build: job, clients, file, model -> trainer.
  """

  folder: pathlib.Path
  clients: object = tiny_rounds.CLIENTS
  model: object = tiny.dense
  algorithm: object = tiny_rounds.SAFL
  config: object = tiny_rounds.CONFIG
  options: server_lib.Options = QUICK
  process_options: dict = dataclasses.field(default_factory=dict)

  def __post_init__(self):
    self.grid = LoopbackGrid()
    self.facts = client_file.Facts.of(
      'tiny',
      'classification' if self.clients.num_classes else 'regression',
      self.clients,
      self.clients.num_classes,
      {},
    )
    self.nodes = {}
    self._new_node = itertools.count(100)
    for k in range(self.clients.num_clients):
      self.join(k)
    self.transport = grid_transport.GridTransport(self.grid)
    self.server = server_lib.Server(
      self.transport, self.clients.num_clients, self.options
    )

  def trainer(self, job, clients, file, model):
    del job, file, model
    options = {'jit_compile': 'false', **self.process_options}
    options.pop('init', None)
    names = ('loss', 'metrics', 'score', 'class_weight', 'from_logits')
    task = {name: options.pop(name, None) for name in names}
    from safl_tf.core import checked

    return client_trainer.ClientTrainer(
      self.model,
      clients,
      checked.rules(self.algorithm),
      checked.config(self.algorithm, self.config),
      'serial',
      options=process_lib.task_options(**task),
      **options,
    )

  def client(self, k, **changes):
    """A new client, as after a start of its program."""
    folder = self.folder / f'client_{k}'
    folder.mkdir(parents=True, exist_ok=True)
    file = client_file.of_client(self.clients, self.facts, k)
    values = {'k': k, 'file': file, 'folder': folder, 'build': self.trainer}
    return client_lib.Client(**{**values, **changes})

  def join(self, k, **changes):
    """Starts a client, with a node of its own; returns the node."""
    node = next(self._new_node)
    client = self.client(k, **changes)
    self.grid.apps[node] = client_app.create(client.handle)
    self.nodes[k] = node
    return node

  def restart(self, k, **changes):
    """Kills a client and starts it again: as another node."""
    self.grid.apps.pop(self.nodes[k], None)
    return self.join(k, **changes)

  def process(self, record=None):
    """The process of a server that starts, or starts again."""
    self.server = server_lib.Server(
      self.transport, self.clients.num_clients, self.options
    )
    self.record = self.server.enrol(record)
    process = process_lib.FederatedProcess(
      self.model,
      remote_data.create(self.record),
      self.algorithm,
      self.config,
      executor=self.server,
      **{'jit_compile': 'false', **self.process_options},
    )
    self.server.begin(process, {}, seed=0)
    return process
