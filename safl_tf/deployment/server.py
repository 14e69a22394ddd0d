"""The server of real clients: an executor whose rounds they run.

  server = Server(transport, num_clients=4)
  record = server.enrol()
  process = FederatedProcess(
    model, remote_data.create(record), algorithm, executor=server
  )
  server.begin(process, settings, seed=0)

The process selects, aggregates and evaluates as in a simulation. A client's
round is a request to it and its reply.
"""

import dataclasses
import hashlib
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging

from safl_tf.core import algorithm as algorithm_lib
from safl_tf.core import client_update, cohort
from safl_tf.core import process as process_lib
from safl_tf.core import state as state_lib
from safl_tf.core.executors import base
from safl_tf.data import client_file
from safl_tf.deployment import admission, members, messages
from safl_tf.deployment import client as client_lib
from safl_tf.deployment import record as record_lib
from safl_tf.deployment import transport as transport_lib
from safl_tf.util import errors

_REPORT = 30.0  # seconds between messages about what the server waits for


@dataclasses.dataclass(frozen=True)
class Options:
  """How patient a server is.

  Attributes:
    round_timeout: seconds that clients have for a round.
    missing: what happens with those that have not answered by then: 'wait' for
      them, or 'drop' them from the round.
    max_wait: seconds without a result from any client after which the server
      gives up.
    poll: seconds between looks at the transport.
    ping_after: seconds without a reply after which the server asks whether a
      request is lost.
  """

  round_timeout: float = 600.0
  missing: str = 'wait'
  max_wait: float = 86400.0
  poll: float = 0.2
  ping_after: float = 15.0


class _Patience:
  """The clock of a round, or of the time before the first one.

  Args:
    options: how long to wait.
    t: the round; 0 before the first one.
  """

  def __init__(self, options: Options, t: int = 0):
    self._options = options
    self._waiting = f'round {t}: waiting for'
    self._lacking = f'round {t}: no result from'
    if t == 0:
      self._waiting = 'waiting to be joined by'
      self._lacking = 'nothing was heard of'
    self._start = self._progress = self._reported = time.monotonic()

  def is_over(self, pending: Sequence[int], progress: bool) -> bool:
    """Returns whether the round's time is over; then it starts again.

    Args:
      pending: the clients that are waited for.
      progress: whether one has joined or trained since the last call.

    Raises:
      errors.RunError: none has for too long.
    """
    options, now = self._options, time.monotonic()
    if progress:
      self._progress = now
    if not pending:
      return False
    if now - self._progress > options.max_wait:
      raise errors.RunError(
        f'{self._lacking} {_clients(pending)} for {options.max_wait:.0f} '
        'seconds (--max_wait); start it, then the same command resumes'
      )
    if now - self._reported > _REPORT:
      self._reported = now
      logging.info('%s %s', self._waiting, _clients(pending))
    if now - self._start <= options.round_timeout:
      return False
    self._start = now
    return True


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
    self._members = members.Members(
      transport, num_clients, options.poll, options.ping_after
    )
    self._job: client_lib.Job | None = None
    self._update: client_update.ClientUpdate | None = None
    self._last_t: dict[int, int] = {}
    self._counted = (0, 0)

  # -- Before and after the rounds.

  def enrol(
    self,
    record: record_lib.Record | None = None,
    facts: client_file.Facts | None = None,
  ) -> record_lib.Record:
    """Waits until every client has joined; returns the record of the run.

    Args:
      record: of a run that has begun; then nothing is waited for.
      facts: of the data; by default, those of most clients.
    """
    if record is None:
      record = self._wait_for_all(facts)
    elif len(record.clients) != self._n:
      hint = f'must be {len(record.clients)}, as when the run began'
      raise errors.InputError('num_clients', self._n, hint)
    self._members.record = record
    return record

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
    record = self._members.record
    assert record is not None
    digest = None if model is None else hashlib.sha256(model).hexdigest()
    self._job = client_lib.Job(
      run=record.run,
      seed=seed,
      num_clients=self._n,
      largest=max(client.size for client in record.clients),
      init=process.init,
      settings=dict(settings),
      model_sha256=digest,
      model_digest=client_lib.model_digest(process.model),
    )
    self._members.begin(self._job, model, process.arithmetic)

  def finish(self, seconds: float = 10.0) -> None:
    """Notifies the clients that the run is complete."""
    assert self._job is not None
    self._members.finish(self._job.run, seconds)

  def _wait_for_all(self, facts: client_file.Facts | None) -> record_lib.Record:
    """Waits for all clients; refuses those whose data are of another kind."""
    patience = _Patience(self._options)
    joined = self._members.described
    while True:
      absent = self._members.absent
      self._members.step()
      if not self._members.absent:
        everybody = [d.facts for d in joined.values()]
        common = facts or admission.most_common(everybody)
        for k, description in sorted(joined.items()):
          reason = admission.difference(description.facts, common)
          if reason is not None:
            self._members.reject(k, reason)
        if not self._members.absent:
          break
      patience.is_over(absent, progress=len(self._members.absent) < len(absent))
    admission.check_names(joined)
    return record_lib.create(common, [joined[k] for k in range(self._n)])

  # -- `executors.base.Remote` and the executor.

  def publish(
    self, clients: Any, algorithm: algorithm_lib.Algorithm, *args: Any
  ) -> None:
    """Only checks the algorithm: clients prepare when a round needs them."""
    check_algorithm(algorithm)

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
    pending = list(ids)
    header = {'kind': 'train', 'job': self._job.key, 't': inputs.t}

    def ask(k: int) -> bytes:
      _, received = inputs.arrays(k)
      return messages.encode(header, received)

    def accept(k: int, reply: messages.Message) -> None:
      answers[k] = self._output(k, inputs.t, reply)
      pending.remove(k)

    self._members.forget_training()
    patience = _Patience(self._options, inputs.t)
    for k in ids:
      while k in pending:
        before = len(pending)
        self._members.step(tuple(pending), ask, accept)
        if patience.is_over(pending, len(pending) < before):
          self._members.forget_pings()
          if self._options.missing == 'drop':
            names = _clients(pending)
            logging.warning('round %d: goes on without %s', inputs.t, names)
            pending.clear()
      yield answers.pop(k, None)
    self._members.forget_training()  # replies that are late are never read

  def _output(
    self, k: int, t: int, message: messages.Message
  ) -> cohort.ClientOutput:
    """Returns the output of a client's round; refuses damaged replies."""
    assert self._job is not None and self._update is not None
    header, arrays = message
    said = (header.get('client'), header.get('job'), header.get('t'))
    if said != (k, self._job.key, t):
      raise messages.DamagedError(f'is of {said}')
    last_t = header.get('last_t')
    if type(last_t) is not int:
      raise messages.DamagedError('has no last_t')
    scalars = {name: arrays.get(name) for name in client_lib.SCALARS}
    metrics = messages.below('metrics/', arrays)
    if metrics.keys() != self._update.metrics:
      raise messages.DamagedError(f'has the metrics {sorted(metrics)}')
    for name, value in {**metrics, **scalars}.items():
      if value is None or value.shape != () or value.dtype.kind not in 'bf':
        raise messages.DamagedError(f'has no {name}')
    upload = messages.below('upload/', arrays)
    finite, sent = bool(scalars['finite']), bool(scalars['sent'])
    if finite and sent:
      _check_upload(upload, self._update.uploads)
      finite = all(
        bool(np.isfinite(array.astype(np.float32, copy=False)).all())
        for array in upload.values()
        if array.dtype.kind in 'fV'
      )
    self._report_loss(k, header.get('lost'), last_t)
    self._last_t[k] = t
    return cohort.ClientOutput(
      kept={},
      upload=upload if finite and sent else {},
      metrics=metrics,
      **{**scalars, 'finite': np.bool_(finite)},
    )

  def _report_loss(self, k: int, lost: object, last_t: int) -> None:
    """Warns of a client that has lost what it kept."""
    known = self._last_t.get(k, 0)
    if lost is None and last_t < known:
      lost = f'has lost what it kept in round {known}'
    if lost is not None:
      text = errors.one_line(str(lost))
      logging.warning('client %d: %s; it starts as a new one', k, text)


def check_algorithm(algorithm: algorithm_lib.Algorithm) -> None:
  """Refuses algorithms that are not the loop of `FederatedProcess.next`."""
  if not algorithm.communicates or algorithm.driver is not None:
    hint = 'cannot run on real clients; simulate it'
    raise errors.InputError('algorithm', algorithm.name, hint)


def _clients(numbers: Iterable[int]) -> str:
  """Names clients in a message."""
  names = [str(k) for k in numbers]
  return f'client{"s" * (len(names) > 1)} {", ".join(names)}'


def _check_upload(
  upload: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]
) -> None:
  """Refuses an upload that is not of the arrays that the round needs."""
  types = lambda arrays: {n: (a.dtype, a.shape) for n, a in arrays.items()}
  if types(upload) != types(expected):
    raise messages.DamagedError(
      f'uploads {types(upload)}, not {types(expected)}'
    )
