"""The server's clients: their addresses and pending requests.

Requests are repeated until there is a reply, which changes nothing: a client
repeats a round from what it kept before.
"""

import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging

from safl_tf.deployment import admission, messages
from safl_tf.deployment import client as client_lib
from safl_tf.deployment import record as record_lib
from safl_tf.deployment import transport as transport_lib
from safl_tf.util import errors, hardware, versions

# client -> the bytes of its request; (client, reply) -> None.
Ask = Callable[[int], bytes]
Accept = Callable[[int, messages.Message], None]

_DESCRIBE = messages.encode({'kind': 'describe'})
_LOOK = 1.0  # seconds between looks for new addresses
_PING_GRACE = 5.0  # seconds for a reply after that to a later ping
_RETRY = 2.0  # seconds before the next attempt after a failure
_MAX_LINE = 1000  # characters


@dataclasses.dataclass
class _Request:
  """A request that has no reply yet."""

  token: str
  kind: str
  sent: float
  pinged: float = -math.inf  # when a ping was sent
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
  """

  address: int | None = None
  uid: str | None = None
  prepared: bool = False
  request: _Request | None = None
  ping: _Request | None = None
  not_before: float = 0.0

  def disconnect(self) -> None:
    """Forgets where the client is, and what it was asked there."""
    self.address = self.request = self.ping = None
    self.prepared = False


class Members:
  """Admits clients, and carries requests to them and replies back.

  Attributes:
    record: the run; None until all clients have joined.
    described: client -> its description, for those that joined.

  Args:
    transport: carries the messages.
    num_clients: n.
    poll: seconds between looks at the transport.
    ping_after: seconds without a reply after which a client is asked whether
      the request is lost.
  """

  def __init__(
    self,
    transport: transport_lib.Transport,
    num_clients: int,
    poll: float,
    ping_after: float,
  ):
    self.record: record_lib.Record | None = None
    self.described: dict[int, record_lib.Description] = {}
    self._transport = transport
    self._poll = poll
    self._ping_after = ping_after
    self._members = [_Member() for _ in range(num_clients)]
    # Address -> the pending request for its description, or None.
    self._asked: dict[int, _Request | None] = {}
    self._preparation: bytes | None = None
    self._arithmetic: Mapping[str, Any] = {}
    self._looked = -math.inf  # when addresses were asked for
    self._warned: set[tuple[str, str]] = set()

  @property
  def absent(self) -> list[int]:
    """The clients that have not joined."""
    numbers = range(len(self._members))
    return [k for k in numbers if k not in self.described]

  def begin(
    self,
    job: client_lib.Job,
    model: bytes | None,
    arithmetic: Mapping[str, Any],
  ) -> None:
    """Sets what clients prepare before they train.

    Args:
      job: the run.
      model: a .keras file of the model, if the job does not name it.
      arithmetic: what affects bits here, see `ClientTrainer.arithmetic`.
    """
    arrays = {}
    if model is not None:
      arrays['model'] = np.frombuffer(model, np.uint8)
    header = {'kind': 'prepare', 'job': dataclasses.asdict(job)}
    self._preparation = messages.encode(header, arrays)
    self._arithmetic = arithmetic

  def step(
    self,
    pending: Sequence[int] = (),
    ask: Ask | None = None,
    accept: Accept | None = None,
  ) -> None:
    """Sends what is due to clients, and reads what has arrived.

    Args:
      pending: the clients that have work.
      ask: client -> its request to train.
      accept: called with a client and its reply to that.
    """
    now = time.monotonic()
    try:
      self._look(now)
      for k in pending:
        assert ask is not None
        self._send_due(k, ask, now)
      replies = self._transport.receive(self._tokens())
      for reply in replies:
        self._read(reply, accept)
    except transport_lib.LostError as error:
      self._lose(error)
      return
    if not replies:
      time.sleep(self._poll)

  def forget_training(self) -> None:
    """Forgets requests to train, whose replies are no longer wanted."""
    for member in self._members:
      if member.request is not None and member.request.kind == 'train':
        member.request = member.ping = None

  def forget_pings(self) -> None:
    """Forgets pings, which may be lost as well; others are sent."""
    for member in self._members:
      member.ping = None

  def reject(self, k: int, reason: str) -> None:
    """Refuses a client that has joined."""
    address = self._members[k].address
    self._members[k] = _Member()
    self.described.pop(k, None)
    if address is not None:
      try:
        self._refuse(address, f'client {k}: {reason}')
      except transport_lib.LostError as error:
        self._lose(error)

  def finish(self, run: str, seconds: float) -> None:
    """Notifies clients that a run is complete; waits for their replies."""
    request = messages.encode({'kind': 'finish', 'run': run})
    try:
      self._looked = -math.inf
      self._look(time.monotonic())
      addresses = [member.address for member in self._members]
      tokens = [
        self._transport.send(a, request) for a in addresses if a is not None
      ]
      end = time.monotonic() + seconds
      while tokens and time.monotonic() < end:
        replied = {r.token for r in self._transport.receive(tokens)}
        tokens = [token for token in tokens if token not in replied]
        time.sleep(self._poll)
    except transport_lib.LostError:
      pass  # clients wait for the next run, as they do if they miss this

  def _lose(self, error: transport_lib.LostError) -> None:
    """Forgets all addresses and requests, which are gone."""
    logging.warning('%s', error)
    self._asked.clear()
    for member in self._members:
      member.disconnect()

  # -- Requests.

  def _look(self, now: float) -> None:
    """Asks new addresses who they are; forgets those that are gone."""
    if now - self._looked < _LOOK:
      return
    self._looked = now
    addresses = set(self._transport.addresses())
    for member in self._members:
      if member.address is not None and member.address not in addresses:
        member.disconnect()
    for address in self._asked.keys() - addresses:
      del self._asked[address]
    for address in addresses:
      asked = self._asked.get(address)
      is_late = asked is not None and now - asked.sent > self._ping_after
      if address not in self._asked or is_late:
        token = self._transport.send(address, _DESCRIBE)
        self._asked[address] = _Request(token, 'describe', now)

  def _send_due(self, k: int, ask: Ask, now: float) -> None:
    """Sends a client its request, or asks whether it is lost."""
    member = self._members[k]
    if member.address is None or now < member.not_before:
      return
    sent = member.request
    if sent is None:
      assert self._preparation is not None
      kind = 'train' if member.prepared else 'prepare'
      data = ask(k) if member.prepared else self._preparation
      token = self._transport.send(member.address, data)
      member.request, member.ping = _Request(token, kind, now), None
    elif now > sent.doubted + _PING_GRACE:
      member.request = None  # is lost
    elif member.ping is None and (
      now - max(sent.sent, sent.pinged) > self._ping_after
    ):
      token = self._transport.send(member.address, _DESCRIBE)
      member.ping, sent.pinged = _Request(token, 'describe', now), now

  def _tokens(self) -> list[str]:
    """Returns the tokens of all requests without a reply."""
    requests = [*self._asked.values()]
    for member in self._members:
      requests += [member.request, member.ping]
    return [request.token for request in requests if request is not None]

  # -- Replies.

  def _read(self, reply: transport_lib.Reply, accept: Accept | None) -> None:
    """Takes in a reply; those that are not waited for are ignored."""
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
    accept: Accept | None,
  ) -> None:
    """Takes in the reply to a request to prepare or to train."""
    assert member.request is not None
    kind = member.request.kind
    member.request = member.ping = None
    message = _decoded(reply)
    status = message.header.get('status')
    arithmetic = message.header.get('arithmetic')
    if (status, kind) == ('prepared', 'prepare') and type(arithmetic) is dict:
      member.prepared = True
      self._compare(k, arithmetic)
    elif status == 'unprepared' and kind == 'train':
      member.prepared = False
    elif status == 'trained' and kind == 'train' and accept is not None:
      try:
        accept(k, message)
      except messages.DamagedError as error:
        self._warn(f'client {k}', f'its reply {error}; trying again')
        member.not_before = time.monotonic() + _RETRY
    elif status == 'ahead' and kind == 'train':
      raise errors.RunError(
        f'client {k} has done round {message.header.get("t")} of this run '
        'already: the folder of the run has lost rounds; put back its newest '
        'checkpoint, or choose another --experiment'
      )
    elif status == 'refused':
      self.reject(k, str(message.header.get('reason')))
    else:
      reason = message.header.get('reason', 'unknown')
      self._warn(f'client {k}', f'could not {kind}: {reason}; trying again')
      member.not_before = time.monotonic() + _RETRY

  def _read_description(self, address: int, reply: transport_lib.Reply) -> None:
    """Takes in who an address is, or refuses it."""
    message = _decoded(reply)
    if message.header.get('status') != 'described':
      reason = message.header.get('reason', 'unknown')
      self._warn(
        'a client', f'could not describe itself: {reason}; asking again'
      )
      self._asked.pop(address, None)
      return
    try:
      description = record_lib.Description.from_json(message.header)
    except (KeyError, TypeError, ValueError, errors.InputError) as error:
      self._refuse(address, f'a client: its description is damaged ({error})')
      return
    k = description.client
    owner = self._transport.client_of(address)
    number = len(self._members)
    reason = admission.refusal(description, number, owner, self.record)
    member = self._members[k] if reason is None else _Member()
    before = member.address
    if before not in (None, address) and member.uid != description.uid:
      reason = 'another one with this number is connected'
    if reason is not None:
      self._refuse(address, f'client {k}: {reason}')
      return
    if before not in (None, address):
      # Its SuperNode has started again, or its state folder was copied.
      assert before is not None
      self._refuse(before, f'client {k}: it has connected again', logging.DEBUG)
    if member.uid is not None:
      logging.info('client %d is back', k)
    else:
      name, size = _line(description.name), description.size
      logging.info('client %d joined (%s, %d examples)', k, name, size)
    member.disconnect()
    member.address, member.uid = address, description.uid
    self.described[k] = description
    self._compare(k, description.hardware)

  def _refuse(
    self, address: int, reason: str, level: int = logging.ERROR
  ) -> None:
    """Sends an address away."""
    reason = _line(reason)
    logging.log(level, 'refused %s', reason)
    data = messages.encode({'kind': 'refuse', 'reason': reason})
    self._transport.send(address, data)

  def _compare(self, k: int, theirs: Mapping[str, Any]) -> None:
    """Warns of what may make a client's sums differ in their last bits."""
    here = {
      'cpu': versions.cpu(),
      'op_threads': hardware.num_op_threads(),
      **self._arithmetic,
    }
    for name, value in theirs.items():
      if name in here and here[name] != value:
        self._warn(
          f'client {k}',
          f'has {name} {value}, here {here[name]}: its sums may be rounded '
          'differently from those of a simulation here',
        )

  def _warn(self, name: str, text: str) -> None:
    """Logs a warning about a client, once."""
    text = _line(text)
    if (name, text) not in self._warned:
      self._warned.add((name, text))
      logging.warning('%s: %s', name, text)


def _line(text: str) -> str:
  """Returns what a client may have written, as a line for the log."""
  line = errors.one_line(text)
  return line if len(line) <= _MAX_LINE else f'{line[:_MAX_LINE]} …'


def _decoded(reply: transport_lib.Reply) -> messages.Message:
  """Returns a reply's message, or one that says why there is none."""
  if reply.data is None:
    return messages.Message({'status': 'failed', 'reason': reply.error}, {})
  try:
    return messages.decode(reply.data)
  except messages.DamagedError as error:
    reason = f'a damaged reply: {error}'
    return messages.Message({'status': 'failed', 'reason': reason}, {})
