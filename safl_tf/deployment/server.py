"""The server of real clients: an executor whose rounds they run.

  server = Server(transport, num_clients=4)
  record = server.enrol()
  process = FederatedProcess(
    model, remote_clients(record), algorithm, executor=server
  )
  server.begin(process, settings, seed=0)

The process selects, aggregates and evaluates as in a simulation. A client's
round is a request to it and its reply; requests are repeated until there is a
reply, which changes nothing: a client repeats a round from what it kept before.
"""

import collections
import dataclasses
import hashlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging

from safl_tf.core import client_update, cohort
from safl_tf.core import process as process_lib
from safl_tf.core import state as state_lib
from safl_tf.core.executors import base
from safl_tf.data import client_data, client_file
from safl_tf.deployment import client as client_lib
from safl_tf.deployment import messages
from safl_tf.deployment import record as record_lib
from safl_tf.deployment import transport as transport_lib
from safl_tf.util import errors, hardware, versions

MISSING = ('wait', 'drop')


@dataclasses.dataclass(frozen=True)
class Options:
  """How patient a server is.

  Attributes:
    round_timeout: seconds that clients have for a round. Then, those that have
      not answered are asked again, or dropped.
    missing: 'wait' for missing clients, or 'drop' them from the round.
    max_wait: seconds without any reply after which the server gives up.
    poll: seconds between looks at the transport.
    ping_after: seconds without a reply after which the server asks whether a
      request is lost.
  """

  round_timeout: float = 600.0
  missing: str = 'wait'
  max_wait: float = 86400.0
  poll: float = 0.2
  ping_after: float = 15.0


_PING_GRACE = 5.0  # seconds for a reply after that to a later ping
_RETRY = 2.0  # seconds before the next attempt after a failure
_REPORT = 30.0  # seconds between messages about what the server waits for


@dataclasses.dataclass
class _Request:
  """A request that has no reply yet."""

  token: str
  kind: str
  sent: float
  doubted: float = math.inf  # when a later ping was answered


@dataclasses.dataclass
class _Member:
  """A client.

  Attributes:
    address: where it is; None if it is not connected.
    uid: of its state folder; None before its first description.
    prepared: whether it has prepared the job.
    request: to prepare or to train.
    ping: to find out whether the request is lost.
    not_before: when to try again.
    last_t: its last round, as it said.
  """

  address: int | None = None
  uid: str | None = None
  prepared: bool = False
  request: _Request | None = None
  ping: _Request | None = None
  not_before: float = 0.0
  last_t: int = 0


class Server:
  """Trains the clients of a process on their own machines.

  Args:
    transport: carries the messages.
    num_clients: n.
    options: see `Options`.
  """

  on_gpu = False

  def __init__(
    self,
    transport: transport_lib.Transport,
    num_clients: int,
    options: Options = Options(),
  ):
    self._transport = transport
    self._n = num_clients
    self._options = options
    self._members = [_Member() for _ in range(num_clients)]
    # Address -> the pending request for its description, or None.
    self._asked: dict[int, _Request | None] = {}
    self._refused: dict[int, str] = {}
    self._record: record_lib.Record | None = None
    self._described: dict[int, record_lib.Description] = {}
    self._job: client_lib.Job | None = None
    self._model: bytes | None = None
    self._update: client_update.ClientUpdate | None = None
    self._looked = -math.inf  # when addresses were asked for
    self._warned: set[tuple[int, str]] = set()
    self._counted = (0, 0)

  # -- Before the rounds.

  def enrol(
    self,
    record: record_lib.Record | None = None,
    facts: client_file.Facts | None = None,
  ) -> record_lib.Record:
    """Waits until every client has said what its data are like.

    Args:
      record: what clients said when the run began; then nothing is waited for.
      facts: what is known of the data; by default, what most clients say.
    """
    self._record = record
    if record is not None:
      return record
    begun = reported = time.monotonic()
    while True:
      self._step({}, lambda k: b'')
      if len(self._described) == self._n:
        common = facts or _most_common(
          [d.facts for d in self._described.values()]
        )
        for k, description in sorted(self._described.items()):
          reason = _difference(description.facts, common)
          if reason is not None:
            self._send_away(k, reason)
        if len(self._described) == self._n:
          break
      now = time.monotonic()
      if now - begun > self._options.max_wait:
        self._give_up(self._absent(), self._options.max_wait)
      if now - reported > _REPORT:
        reported = now
        names = ', '.join(map(str, self._absent()))
        logging.info('waiting for clients to join: %s', names)
    found = [self._described[k] for k in range(self._n)]
    _check_names(found)
    self._record = record_lib.create(common, found)
    return self._record

  def begin(
    self,
    process: process_lib.FederatedProcess,
    settings: Mapping[str, Any],
    seed: int,
    model: bytes | None = None,
  ) -> None:
    """Sets what clients prepare for the rounds of a process.

    Args:
      process: whose executor this is.
      settings: for `client.Build`.
      seed: of the run.
      model: a .keras file of the model, if settings do not name it.
    """
    assert self._record is not None
    self._model = model
    self._job = client_lib.Job(
      run=self._record.run,
      seed=seed,
      num_clients=self._n,
      largest=max(client.size for client in self._record.clients),
      init=process.init,
      settings=dict(settings),
      model_sha256=model and hashlib.sha256(model).hexdigest(),
      model_digest=client_lib.model_digest(process.model),
    )
    self._arithmetic = process.arithmetic

  def finish(self, seconds: float = 10.0) -> None:
    """Tells the clients that the run is complete."""
    assert self._record is not None
    request = messages.encode({'kind': 'finish', 'run': self._record.run})
    tokens = []
    try:
      self._look(time.monotonic(), at_once=True)
      for member in self._members:
        if member.address is not None:
          tokens.append(self._transport.send(member.address, request))
      end = time.monotonic() + seconds
      while tokens and time.monotonic() < end:
        replied = {r.token for r in self._transport.receive(tokens)}
        tokens = [token for token in tokens if token not in replied]
        time.sleep(self._options.poll)
    except transport_lib.LostError:
      pass  # clients wait for the next run, as they do if they miss this

  # -- `executors.base.Remote` and the executor.

  def publish(self, *args: Any) -> None:
    """Does nothing: clients prepare when a round needs them."""

  def executor(
    self, model: Any, task: Any, update: client_update.ClientUpdate
  ) -> 'Server':
    """Returns itself."""
    del model, task
    self._update = update
    return self

  def wait(self) -> None:
    """Does nothing: each round waits for its clients."""

  def close(self) -> None:
    """Does nothing: the transport is closed by its owner."""

  def take_metrics(self) -> dict[str, Any]:
    """Returns the bytes of messages since the last call."""
    up, down = self._transport.bytes_up, self._transport.bytes_down
    before, self._counted = self._counted, (up, down)
    wire = state_lib.WireMetrics(up - before[0], down - before[1])
    return {'wire': wire}

  @property
  def num_traces(self) -> int:
    """Clients trace; the server does not."""
    return 0

  def __call__(
    self, inputs: cohort.CohortInput, ids: Sequence[int]
  ) -> base.Outputs:
    """Yields the outputs of a round's clients; None for missing ones."""
    assert self._job is not None
    answers: dict[int, cohort.ClientOutput] = {}
    pending = dict.fromkeys(ids)
    header = {'kind': 'train', 'job': self._job.key, 't': inputs.t}

    def request(k: int) -> bytes:
      _, received = inputs.arrays(k)
      return messages.encode(header, received)

    def accept(k: int, reply: messages.Message) -> None:
      answers[k] = self._output(k, inputs.t, reply)
      del pending[k]

    self._forget_requests()
    for k in ids:
      if k not in answers and pending:
        self._gather(inputs.t, pending, lambda: k in answers, request, accept)  # noqa: B023
      yield answers.pop(k, None)
    self._forget_requests()  # replies that are late are never read

  # -- Within a round.

  def _gather(
    self,
    t: int,
    pending: dict[int, None],
    done: Callable[[], bool],
    request: Callable[[int], bytes],
    accept: Callable[[int, messages.Message], None],
  ) -> None:
    """Asks clients until one is done, or all that are missing are dropped."""
    options = self._options
    start = progress = reported = time.monotonic()
    while not done() and pending:
      before = len(pending)
      self._step(pending, request, accept)
      now = time.monotonic()
      if len(pending) < before:
        progress = now
      names = ', '.join(map(str, pending))
      if now - start > options.round_timeout and pending:
        if options.missing == 'drop':
          logging.warning('round %d: goes on without client %s', t, names)
          pending.clear()
          return
        start = now
        self._forget_requests()  # asks again
      if now - progress > options.max_wait:
        self._give_up(list(pending), options.max_wait)
      if pending and now - reported > _REPORT:
        reported = now
        logging.info('round %d: waiting for client %s', t, names)

  def _step(
    self,
    pending: Mapping[int, None],
    request: Callable[[int], bytes],
    accept: Callable[[int, messages.Message], None] | None = None,
  ) -> None:
    """Sends what is due, and reads what has arrived."""
    now = time.monotonic()
    try:
      self._look(now)
      for k in pending:
        self._send_due(k, request, now)
      replies = self._transport.receive(self._tokens())
      for reply in replies:
        self._read(reply, accept)
    except transport_lib.LostError as error:
      logging.warning('%s', error)
      self._forget_everybody()
      return
    if not replies:
      time.sleep(self._options.poll)

  def _look(self, now: float, at_once: bool = False) -> None:
    """Asks new addresses who they are; forgets those that are gone."""
    if now - self._looked < 1.0 and not at_once:
      return
    self._looked = now
    addresses = set(self._transport.addresses())
    for member in self._members:
      if member.address is not None and member.address not in addresses:
        member.address, member.request, member.ping = None, None, None
        member.prepared = False
    for address in [a for a in self._asked if a not in addresses]:
      del self._asked[address]
      self._refused.pop(address, None)
    describe = messages.encode({'kind': 'describe'})
    for address in addresses - self._asked.keys():
      token = self._transport.send(address, describe)
      self._asked[address] = _Request(token, 'describe', now)

  def _send_due(
    self, k: int, request: Callable[[int], bytes], now: float
  ) -> None:
    """Sends a client its request, or asks whether it is lost."""
    member = self._members[k]
    if member.address is None or now < member.not_before:
      return
    sent = member.request
    if sent is None:
      kind = 'train' if member.prepared else 'prepare'
      data = request(k) if member.prepared else self._preparation()
      token = self._transport.send(member.address, data)
      member.request, member.ping = _Request(token, kind, now), None
    elif now > sent.doubted + _PING_GRACE:
      member.request = None  # is lost
    elif now - sent.sent > self._options.ping_after and member.ping is None:
      describe = messages.encode({'kind': 'describe'})
      token = self._transport.send(member.address, describe)
      member.ping = _Request(token, 'describe', now)

  def _preparation(self) -> bytes:
    assert self._job is not None
    arrays = {}
    if self._model is not None:
      arrays['model'] = np.frombuffer(self._model, np.uint8)
    job = dataclasses.asdict(self._job)
    return messages.encode({'kind': 'prepare', 'job': job}, arrays)

  def _tokens(self) -> list[str]:
    """Returns the tokens of all requests without a reply."""
    requests = [*self._asked.values()]
    for member in self._members:
      requests += [member.request, member.ping]
    return [request.token for request in requests if request is not None]

  def _read(
    self,
    reply: transport_lib.Reply,
    accept: Callable[[int, messages.Message], None] | None,
  ) -> None:
    """Takes in a reply."""
    for address, asked in self._asked.items():
      if asked is not None and asked.token == reply.token:
        self._asked[address] = None
        self._read_description(address, reply)
        return
    for k, member in enumerate(self._members):
      if member.ping is not None and member.ping.token == reply.token:
        if member.request is not None and reply.data is not None:
          member.request.doubted = time.monotonic()
        if reply.data is None:
          member.ping = None
        return
      if member.request is not None and member.request.token == reply.token:
        self._read_answer(k, member, reply, accept)
        return

  def _read_answer(
    self,
    k: int,
    member: _Member,
    reply: transport_lib.Reply,
    accept: Callable[[int, messages.Message], None] | None,
  ) -> None:
    """Takes in the reply to a request to prepare or to train."""
    assert member.request is not None
    kind = member.request.kind
    member.request = member.ping = None
    message = _decoded(reply)
    status = message.header.get('status')
    if status == 'prepared' and kind == 'prepare':
      member.prepared = True
      self._compare(k, message.header.get('arithmetic') or {})
    elif status == 'unprepared':
      member.prepared = False
    elif status == 'trained' and kind == 'train' and accept is not None:
      try:
        accept(k, message)
      except messages.DamagedError as error:
        logging.warning('client %d: its reply %s', k, error)
        member.not_before = time.monotonic() + _RETRY
    elif status == 'ahead':
      raise errors.RunError(
        f'client {k} has done round {message.header.get("t")} of this run '
        'already: the folder of the run has lost rounds; put back its newest '
        'checkpoint, or choose another --experiment'
      )
    elif status == 'refused':
      self._send_away(k, str(message.header.get('reason')))
    else:
      reason = message.header.get('reason', 'unknown')
      self._warn(k, f'could not {kind}: {reason}; trying again')
      member.not_before = time.monotonic() + _RETRY

  def _output(
    self, k: int, t: int, message: messages.Message
  ) -> cohort.ClientOutput:
    """Returns the output of a client's round; refuses what is no such."""
    assert self._job is not None and self._update is not None
    header, arrays = message
    said = (header.get('client'), header.get('job'), header.get('t'))
    if said != (k, self._job.key, t):
      raise messages.DamagedError(f'is of {said}')
    lost, last_t = header.get('lost'), int(header.get('last_t', 0))
    member = self._members[k]
    if lost:
      logging.warning('client %d: %s; it starts as a new one', k, lost)
    elif last_t < member.last_t:
      logging.warning(
        'client %d: has lost what it kept in round %d; it starts as a new one',
        k,
        member.last_t,
      )
    scalars = {name: arrays.get(name) for name in client_lib.SCALARS}
    for name, value in scalars.items():
      if value is None or value.shape != ():
        raise messages.DamagedError(f'has no {name}')
    upload = _below('upload/', arrays)
    finite, sent = bool(scalars['finite']), bool(scalars['sent'])
    if finite and sent:
      _check_upload(upload, self._update.uploads)
      finite = all(
        bool(np.isfinite(array.astype(np.float32, copy=False)).all())
        for array in upload.values()
        if array.dtype.kind in 'fV'
      )
    member.last_t = t
    return cohort.ClientOutput(
      kept={},
      upload=upload if finite and sent else {},
      metrics=_below('metrics/', arrays),
      **{**scalars, 'finite': np.bool_(finite)},
    )

  # -- Who is who.

  def _read_description(self, address: int, reply: transport_lib.Reply) -> None:
    """Takes in who an address is, or refuses it."""
    message = _decoded(reply)
    if message.header.get('status') != 'described':
      self._asked.pop(address, None)  # asks again
      return
    bound = self._transport.client_of(address)
    try:
      description = record_lib.Description.from_json(message.header)
    except (KeyError, TypeError, ValueError, errors.InputError) as error:
      self._refuse(address, f'its description is damaged ({error})')
      return
    k = description.client
    reason = self._why_not(address, description, bound)
    if reason is not None:
      self._refuse(address, f'client {k}: {reason}')
      return
    member = self._members[k]
    if member.address is not None and member.address != address:
      logging.info('client %d is back', k)
    elif k not in self._described:
      logging.info(
        'client %d joined (%s, %d examples)',
        k,
        description.name,
        description.size,
      )
    member.address, member.uid = address, description.uid
    member.request = member.ping = None
    member.prepared = False
    self._described[k] = description
    self._compare(k, description.hardware)

  def _why_not(
    self, address: int, new: record_lib.Description, bound: int | None
  ) -> str | None:
    """Says why a client cannot take part; None if it can."""
    if new.protocol != messages.PROTOCOL:
      return f'speaks protocol {new.protocol}, the server {messages.PROTOCOL}'
    known = versions.find()
    for name in client_lib.PACKAGES:
      if new.versions.get(name) != known[name]:
        return (
          f'has {name} {new.versions.get(name)}, the server {known[name]}; '
          'install the same version'
        )
    if not 0 <= new.client < self._n:
      return f'this run has clients 0 to {self._n - 1} (--num_clients)'
    if bound is not None and bound != new.client:
      return f'its key is that of client {bound}'
    member = self._members[new.client]
    other = member.address is not None and member.address != address
    if other and member.uid != new.uid:
      return 'another one with this number is connected'
    if self._record is None:
      return None
    began = self._record.clients[new.client]
    if new.size != began.size or new.data_sha256 != began.data_sha256:
      return (
        f'has other data ({new.size} examples, {new.data_sha256[:8]}) than '
        f'when the run began ({began.size}, {began.data_sha256[:8]})'
      )
    return _difference(new.facts, self._record.facts)

  def _refuse(self, address: int, reason: str) -> None:
    """Sends an address away."""
    logging.error('refused %s', reason)
    self._refused[address] = reason
    data = messages.encode({'kind': 'refuse', 'reason': reason})
    self._transport.send(address, data)

  def _send_away(self, k: int, reason: str) -> None:
    """Refuses a client that has joined."""
    member = self._members[k]
    if member.address is not None:
      self._refuse(member.address, f'client {k}: {reason}')
    self._members[k] = _Member()
    self._described.pop(k, None)

  def _absent(self) -> list[int]:
    """Returns the clients that have not joined."""
    return [k for k in range(self._n) if k not in self._described]

  def _forget_requests(self) -> None:
    """Forgets requests to train, whose replies are no longer wanted."""
    for member in self._members:
      if member.request is not None and member.request.kind == 'train':
        member.request = member.ping = None

  def _forget_everybody(self) -> None:
    """Forgets addresses and requests, of a transport that is new."""
    self._asked.clear()
    self._refused.clear()
    for member in self._members:
      member.address = member.request = member.ping = None
      member.prepared = False

  def _compare(self, k: int, theirs: Mapping[str, Any]) -> None:
    """Warns of what may make a client's sums differ in their last bits."""
    here = {
      'cpu': versions.cpu(),
      'op_threads': hardware.num_op_threads(),
      **getattr(self, '_arithmetic', {}),
    }
    for name, value in theirs.items():
      if name in here and here[name] != value:
        self._warn(
          k,
          f'has {name} {value}, here {here[name]}: its sums may be rounded '
          'differently from those of a simulation here',
        )

  def _warn(self, k: int, text: str) -> None:
    """Logs a warning about a client, once."""
    if (k, text) not in self._warned:
      self._warned.add((k, text))
      logging.warning('client %d: %s', k, text)

  def _give_up(self, clients: Sequence[int], seconds: float) -> None:
    names = ', '.join(map(str, clients))
    raise errors.RunError(
      f'nothing was heard of client {names} for {seconds:.0f} seconds; start '
      'it, then the same command resumes'
    )


class RemoteClientData(client_data.ClientData):
  """The clients of a run without their data: sizes and types of examples.

  Every example is the same row of zeros.
  """

  has_examples = False


def remote_clients(record: record_lib.Record) -> RemoteClientData:
  """Returns the clients of a run, as the server knows them."""
  from safl_tf.data import arrays

  facts = record.facts
  x = arrays.map_leaves(lambda a: a[:1], _zeros(facts.inputs))
  y = np.zeros([1, *facts.targets['shape']], facts.targets['dtype'])
  weights = None
  if facts.weights is not None:
    weights = np.ones([1, *facts.weights], np.float32)
  return RemoteClientData(
    x,
    y,
    [np.zeros(client.size, np.int32) for client in record.clients],
    [client.name for client in record.clients],
    facts.num_classes,
    weights,
    list(facts.class_names) or None,
  )


def _zeros(spec: Any) -> Any:
  """Returns two zero inputs; a list of arrays is a tuple."""
  from safl_tf.data import arrays

  zeros = arrays.zeros_like_spec(spec)
  return tuple(zeros) if isinstance(zeros, list) else zeros


def _decoded(reply: transport_lib.Reply) -> messages.Message:
  """Returns a reply's message, or one that says why there is none."""
  if reply.data is None:
    return messages.Message({'status': 'failed', 'reason': reply.error}, {})
  try:
    return messages.decode(reply.data)
  except messages.DamagedError as error:
    reason = f'a damaged reply: {error}'
    return messages.Message({'status': 'failed', 'reason': reason}, {})


def _check_upload(
  upload: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]
) -> None:
  """Refuses an upload that is not of the arrays that the round needs."""
  types = lambda arrays: {n: (a.dtype, a.shape) for n, a in arrays.items()}
  if types(upload) != types(expected):
    raise messages.DamagedError(
      f'uploads {types(upload)}, not {types(expected)}'
    )


def _most_common(facts: Sequence[client_file.Facts]) -> client_file.Facts:
  """Returns what most clients say; in a tie, the first of them."""
  texts = [str(sorted(f.to_json().items())) for f in facts]
  text, _ = collections.Counter(texts).most_common(1)[0]
  return facts[texts.index(text)]


def _difference(
  facts: client_file.Facts, common: client_file.Facts
) -> str | None:
  """Says in what the data of a client differ; None if they do not."""
  for name, (own, others) in facts.differences(common).items():
    return f'its data have {name} {own}, those of the others {others}'
  return None


def _check_names(found: Sequence[record_lib.Description]) -> None:
  """Refuses clients with the same name."""
  names = collections.Counter(d.name for d in found)
  for name, count in names.items():
    if count > 1:
      clients = [d.client for d in found if d.name == name]
      raise errors.RunError(f'clients {clients} have the same name, {name}')


def _below(
  prefix: str, arrays: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
  """Returns the arrays whose names have a prefix, without it."""
  return {
    name.removeprefix(prefix): array
    for name, array in arrays.items()
    if name.startswith(prefix)
  }
