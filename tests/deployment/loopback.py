"""Clients in this process, behind Flower's own Grid."""

import collections
import dataclasses
import functools
import itertools
import math
import pathlib
import time
from typing import ClassVar

from flwr.app import Context, Message, RecordDict
from flwr.app.error import Error
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from safl_tf.core import checked, client_trainer
from safl_tf.core import process as process_lib
from safl_tf.data import client_file
from safl_tf.deployment import client as client_lib
from safl_tf.deployment import client_state, messages, remote_data
from safl_tf.deployment import server as server_lib
from safl_tf.deployment.flower import client_app, grid_transport, payload
from tests import memories, tiny, tiny_rounds

SERVER_NODE = 1
QUICK = server_lib.Options(round_timeout=60, poll=0.0, max_wait=60)
# Names of the task among the arguments of a process.
TASK = ('loss', 'metrics', 'score', 'class_weight', 'from_logits')


def header(message):
  """What the header of a message of ours says; empty without one."""
  if message.has_error():
    return {}
  try:
    return messages.decode(payload.unwrap(message)).header
  except messages.DamagedError:
    return {}


class LoopbackGrid(Grid):
  """Calls ClientApps when they are sent messages.

  Attributes:
    apps: node -> its ClientApp.
    ended: node -> the error with which its app ended.
    lose: called with (node, request); one for which it is true is lost.
    drop: called with (node, reply); a reply for which it is true is lost.
    change: called with (node, the bytes of a reply); returns others.
    seconds: node -> how long each of its requests takes.
    requests: node -> the kinds of the requests it was sent.
    sent: the messages of both directions, by direction.
  """

  def __init__(self):
    TaskIdentity.task_id = TaskIdentity.run_id = 1
    TaskIdentity.node_id = SERVER_NODE
    self.apps: dict[int, ClientApp] = {}
    self.ended = {}
    self.lose = lambda node, request: False
    self.drop = lambda node, reply: False
    self.change = lambda node, data: data
    self.seconds = collections.defaultdict(float)
    self.requests = collections.defaultdict(list)
    self.sent = {'up': [], 'down': []}
    self._replies = {}  # token -> when it arrives, and the reply
    self._free = collections.defaultdict(float)  # node -> when it is idle
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
      ids.append(token)
      node = message.metadata.dst_node_id
      self.requests[node].append(header(message).get('kind'))
      self.sent['down'].append(message)
      if self.lose(node, message):
        continue
      begin = max(self._free[node], time.monotonic())
      self._free[node] = begin + self.seconds[node]
      reply = self._answer(message)
      if not self.drop(node, reply):
        self._replies[token] = self._free[node], reply
    return ids

  def pull_messages(self, message_ids):
    now, replies = time.monotonic(), []
    for token in message_ids:
      arrival, reply = self._replies.get(token, (math.inf, None))
      if arrival <= now:
        del self._replies[token]
        self.sent['up'].append(reply)
        replies.append(reply)
    return replies

  def send_and_receive(self, messages, *, timeout=None):
    raise NotImplementedError

  @property
  def unread(self):
    """The headers of replies that nobody has pulled."""
    return [header(reply) for _, reply in self._replies.values()]

  def release(self):
    """Lets all replies arrive now."""
    self.seconds.clear()
    self._free.clear()
    self._replies = {k: (0.0, r) for k, (_, r) in self._replies.items()}

  def forget(self, moves):
    """Forgets messages and replies; gives all nodes other ids, if it moves."""
    self._replies.clear()
    if moves:
      self.apps = {node + 1000: app for node, app in self.apps.items()}

  def _answer(self, message):
    node = message.metadata.dst_node_id
    app = self.apps.get(node)
    if app is None:
      return Message(Error(5, 'the node is gone'), reply_to=message)
    context = Context(1, node, {}, RecordDict(), {})
    TaskIdentity.node_id = node
    try:
      reply = app(message, context)
    except Exception as error:  # as a client's program, which ends
      self.ended[node] = error
      self.apps.pop(node, None)
      reply = Message(Error(8, str(error)), reply_to=message)
    else:
      data = self.change(node, payload.unwrap(reply))
      reply = Message(payload.wrap(data), reply_to=message)
    finally:
      TaskIdentity.node_id = SERVER_NODE
    return reply


@dataclasses.dataclass
class Federation:
  """A server and its clients.

  Args:
    folder: for the clients' state.
    clients: the data of all.
    model: of the process.
    algorithm: of the process.
    config: of local training.
    options: of the server.
    process_options: of the process and of the clients' trainers.
    joined: the clients that are started; all by default.
    seed: of the run.
  """

  folder: pathlib.Path
  clients: object = tiny_rounds.CLIENTS
  model: object = tiny.dense
  algorithm: object = tiny_rounds.SAFL
  config: object = tiny_rounds.CONFIG
  options: server_lib.Options = QUICK
  process_options: dict = dataclasses.field(default_factory=dict)
  joined: tuple | None = None
  seed: int = 0

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
    joined = range(self.n) if self.joined is None else self.joined
    for k in joined:
      self.join(k)
    self.transport = grid_transport.GridTransport(self.grid)
    self.process_options = {'jit_compile': 'false', **self.process_options}

  @property
  def n(self):
    return self.clients.num_clients

  def trainer(self, job, clients, file, model, **changes):
    """Builds what a client trains with, from the settings of all."""
    del job, file, model
    values = {'architecture': self.model, 'config': self.config, **changes}
    options = dict(self.process_options)
    options.pop('init', None)
    task = {name: options.pop(name, None) for name in TASK}
    return client_trainer.ClientTrainer(
      values['architecture'],
      clients,
      checked.rules(self.algorithm),
      checked.config(self.algorithm, values['config']),
      'serial',
      options=process_lib.task_options(**task),
      **options,
    )

  def client(self, k, folder=None, **changes):
    """A new client, as after a start of its program."""
    folder = self.folder / (folder or f'client_{k}')
    folder.mkdir(parents=True, exist_ok=True)
    values = {'k': k, 'folder': folder, 'build': self.trainer, **changes}
    if 'file' not in values:
      values['file'] = client_file.of_client(self.clients, self.facts, k)
    return client_lib.Client(**values)

  def join(self, k, node=None, **changes):
    """Starts a client, with a node of its own by default; returns the node."""
    node = node or next(self._new_node)
    client = self.client(k, **changes)
    self.grid.apps[node] = client_app.create(client.handle)
    self.nodes[k] = node
    return node

  def kill(self, k):
    """Ends a client."""
    self.grid.apps.pop(self.nodes[k], None)

  def restart(self, k, **changes):
    """Kills a client and starts it again: as another node."""
    self.kill(k)
    return self.join(k, **changes)

  def kept_by(self, k, folder=None):
    """What client k has on its disk; None if it has nothing."""
    owner = {'run': self.record.run, 'client': k, 'seed': self.seed}
    folder = self.state_path(k, folder).parent
    return client_state.ClientState(folder, owner).load()

  def state_path(self, k, folder=None):
    """The file in which client k keeps its arrays."""
    folder = self.folder / (folder or f'client_{k}')
    return folder / f'run_{self.record.run}' / 'client_state.bin'

  def start(self):
    """Starts a server."""
    self.server = server_lib.Server(self.transport, self.n, self.options)
    return self.server

  def process(self, record=None):
    """The process of a server that starts, or starts again."""
    self.record = self.start().enrol(record)
    process = process_lib.FederatedProcess(
      self.model,
      remote_data.create(self.record),
      self.algorithm,
      self.config,
      executor=self.server,
      **self.process_options,
    )
    self.server.begin(process, {}, seed=self.seed)
    return process

  def simulation(self, **changes):
    """The same process, simulated."""
    return process_lib.FederatedProcess(
      **{
        'model': self.model,
        'clients': self.clients,
        'algorithm': self.algorithm,
        'config': self.config,
        **self.process_options,
        **changes,
      }
    )

  def check_same(self, one, other):
    """Compares states bit for bit; clients' own arrays are on their disks."""
    assert one.t == other.t
    assert (one.z_bar is None) == (other.z_bar is None)
    if one.z_bar is not None:
      assert one.z_bar.tobytes() == other.z_bar.tobytes()
    memory = [memories.to_arrays(state.memory) for state in (one, other)]
    assert memory[0].keys() == memory[1].keys()
    for name, array in memory[0].items():
      assert array.tobytes() == memory[1][name].tobytes()
    for k in one.client_models.versions:
      after = self.kept_by(k).after
      assert after.keys() == one.clients.keys()
      for name, store in one.clients.items():
        assert after[name].tobytes() == store[k].tobytes()


class CompiledOnce(Federation):
  """A federation whose clients of equal settings and data compile once."""

  trainers: ClassVar = {}

  def trainer(self, job, clients, file, model, **changes):
    build = functools.partial(super().trainer, job, clients, file, model)
    if changes or self.algorithm is not tiny_rounds.SAFL:
      return build(**changes)
    key = file.client, client_file.digest(file), job.num_clients, job.largest
    if key not in self.trainers:
      self.trainers[key] = build()
    return self.trainers[key]
