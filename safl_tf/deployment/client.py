"""A client: trains with its own data and keeps its own model.

It answers the server's requests, bytes for bytes; a transport carries them.
The data never leave it. What it keeps between rounds, z_k and others, is in a
file of its own, see `client_state`.
"""

import contextlib
import dataclasses
import hashlib
import pathlib
import tempfile
import traceback
import uuid
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
from absl import logging

from safl_tf.core import client_trainer, flat_model
from safl_tf.core import process as process_lib
from safl_tf.data import client_data, client_file
from safl_tf.deployment import admission, client_state, messages
from safl_tf.util import atomic_io, errors, hardware, versions

OWN_MODEL = 'own_model.keras'


@dataclasses.dataclass(frozen=True)
class Job:
  """What a client needs to know to take part in a run.

  Attributes:
    run: the id of the run, unique.
    seed: of the run.
    num_clients: n.
    largest: the number of examples of the largest client, which the shapes of
      compiled training depend on.
    init: 'per_client' or 'shared'.
    settings: of the algorithm, the model and local training.
    model_sha256: of the model file that is sent along; None if settings name
      the model.
    model_digest: of the architecture that the server built.
  """

  run: str
  seed: int
  num_clients: int
  largest: int
  init: str
  settings: dict[str, Any]
  model_sha256: str | None
  model_digest: str

  @property
  def key(self) -> str:
    """A digest of all fields."""
    text = atomic_io.to_json(dataclasses.asdict(self), None)
    return hashlib.sha256(text.encode()).hexdigest()


class Build(Protocol):
  """Builds the trainer of a job."""

  def __call__(
    self,
    job: Job,
    clients: client_data.ClientData,
    file: client_file.ClientFile,
    model_file: pathlib.Path | None,
  ) -> client_trainer.ClientTrainer:
    """Returns the trainer; `model_file` is that of the server, if any."""


class _Prepared(NamedTuple):
  """A job that is ready for rounds."""

  job: Job
  trainer: client_trainer.ClientTrainer
  state: client_state.ClientState
  initial: dict[str, np.ndarray]


class RefusedError(Exception):
  """The server has refused this client; the message says why."""


class FinishedError(Exception):
  """The server has finished the run."""


class Client:
  """Answers the requests of a server.

  Args:
    k: the number of the client.
    file: its data.
    folder: for what it keeps between rounds, open as an `output_folder`.
    build: builds the trainer of a job.
  """

  def __init__(
    self,
    k: int,
    file: client_file.ClientFile,
    folder: pathlib.Path,
    build: Build,
  ):
    assert file.examples is not None
    self._k = k
    self._file = file
    self._folder = folder
    self._build = build
    self._digest = client_file.digest(file)
    self._uid = _own_id(folder)
    self._prepared: _Prepared | None = None
    self._handlers: dict[str, Callable[..., bytes]] = {
      'describe': self._describe,
      'prepare': self._prepare,
      'train': self._train,
    }

  def handle(self, request: bytes) -> bytes:
    """Returns the reply to a request.

    Raises:
      RefusedError: the server has sent this client away.
      FinishedError: the run is complete.
    """
    try:
      header, arrays = messages.decode(request)
      kind = header.get('kind')
      if kind == 'refuse':
        raise RefusedError(str(header.get('reason')))
      if kind == 'finish':
        self._save_model(str(header.get('run')))
        raise FinishedError(str(header.get('run')))
      handler = self._handlers.get(str(kind))
      if handler is None:
        return _failed(f'the request {kind!r} is of another version')
      return handler(header, arrays)
    except (RefusedError, FinishedError):
      raise
    except messages.DamagedError as error:
      return _failed(f'a damaged request: {error}')
    except Exception as error:
      logging.error('%s', traceback.format_exc())
      return _failed(f'{type(error).__name__}: {errors.one_line(str(error))}')

  def _describe(self, header: Any, arrays: Any) -> bytes:
    """Returns who this client is and what its data are like, but no data."""
    del header, arrays
    file, known = self._file, versions.find()
    assert file.examples is not None
    return messages.encode(
      {
        'status': 'described',
        'protocol': messages.PROTOCOL,
        'client': self._k,
        'name': file.client_id or str(self._k),
        'uid': self._uid,
        'size': len(file.examples.y),
        'data_sha256': self._digest,
        'facts': file.facts.to_json(),
        'versions': {name: known[name] for name in admission.PACKAGES},
        'hardware': {
          'cpu': known['cpu'],
          'op_threads': hardware.num_op_threads(),
        },
      }
    )

  def _prepare(
    self, header: dict[str, Any], arrays: Mapping[str, np.ndarray]
  ) -> bytes:
    """Builds and compiles the training of a run."""
    job = Job(**header['job'])
    if self._prepared is None or self._prepared.job != job:
      self._prepared = None  # frees memory first
      try:
        self._prepared = self._create(job, arrays)
      except errors.InputError as error:
        return messages.encode({'status': 'refused', 'reason': str(error)})
    prepared = self._prepared
    arithmetic = prepared.trainer.arithmetic
    return messages.encode({'status': 'prepared', 'arithmetic': arithmetic})

  def _create(self, job: Job, arrays: Mapping[str, np.ndarray]) -> _Prepared:
    logging.info('preparing run %s', job.run)
    folder = self._folder / f'run_{uuid.UUID(job.run)}'  # no path of others
    folder.mkdir(exist_ok=True)
    model = None
    if job.model_sha256 is not None:
      content = arrays['model'].tobytes()
      if hashlib.sha256(content).hexdigest() != job.model_sha256:
        raise errors.InputError('model', 'sent', 'does not match its SHA-256')
      model = folder / 'model.keras'
      atomic_io.write_bytes(model, content)
    clients = own_view(self._file, self._k, job.num_clients, job.largest)
    trainer = self._build(job, clients, self._file, model)
    built = model_digest(trainer.model)
    if built != job.model_digest:
      raise errors.InputError(
        'model',
        built[:50],
        f'is not the model of the server, {job.model_digest[:50]}',
      )
    trainer.compile()
    zeros, _ = trainer.zero_arrays
    initial = process_lib.initial_models(trainer.model, job.init, job.seed)
    work = trainer.client_work.init(trainer.model.layout)
    owner = {'run': job.run, 'client': self._k, 'seed': job.seed}
    return _Prepared(
      job,
      trainer,
      client_state.ClientState(folder, owner),
      {**zeros, **work, 'z': initial(self._k)},
    )

  def _train(
    self, header: dict[str, Any], received: dict[str, np.ndarray]
  ) -> bytes:
    """Runs round t: mix, training, gate; saves z_k before it answers."""
    prepared, t = self._prepared, int(header['t'])
    if prepared is None or prepared.job.key != header['job']:
      return messages.encode({'status': 'unprepared'})
    saved, lost = self._load(prepared.state)
    before = prepared.initial
    if saved is not None:
      if saved.t > t:
        return messages.encode({'status': 'ahead', 't': saved.t})
      before = saved.before if saved.t == t else saved.after
    ids = np.array([self._k])
    [output] = prepared.trainer.outputs(
      prepared.job.seed, t, ids, lambda k: (before, received)
    )
    assert output is not None
    after = before
    if output.finite:
      after = {**before, **output.kept}
    prepared.state.save(client_state.Saved(t, before, after))
    logging.info(
      'round %d: loss %.4g%s', t, output.train_loss, _outcome(output)
    )
    arrays = {
      **{f'metrics/{name}': value for name, value in output.metrics.items()},
      **{name: getattr(output, name) for name in SCALARS},
    }
    if output.sent and output.finite:
      shared = {n: output.kept[n] for n in prepared.trainer.shared}
      for name, array in {**shared, **output.upload}.items():
        arrays[f'upload/{name}'] = array
    reply = {
      'status': 'trained',
      'client': self._k,
      'job': prepared.job.key,
      't': t,
      'last_t': 0 if saved is None else saved.t,
      'lost': lost,
    }
    return messages.encode(reply, arrays)

  def _save_model(self, run: str) -> None:
    """Writes the own model z_k of a complete run as a Keras file."""
    prepared = self._prepared
    if prepared is None or prepared.job.run != run:
      return
    saved, _ = self._load(prepared.state)
    if saved is None or not prepared.trainer.keeps_models:
      return
    model = prepared.trainer.model.to_model(saved.after['z'])
    path = prepared.state.path.with_name(OWN_MODEL)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
      temporary = pathlib.Path(folder, OWN_MODEL)
      model.save(temporary)
      atomic_io.write_bytes(path, temporary.read_bytes())
    logging.info("this client's own model is %s", path)

  def _load(
    self, state: client_state.ClientState
  ) -> tuple[client_state.Saved | None, str | None]:
    """Returns what was saved, and what was lost, if anything."""
    try:
      return state.load(), None
    except client_state.DamagedError as error:
      aside = state.set_aside()
      lost = f'{error}; it is kept as {aside.name}'
      logging.warning('%s; this client starts as a new one', lost)
      return None, lost


# The fields of `cohort.ClientOutput` that a reply has besides its arrays.
SCALARS = ('finite', 'sent', 'q', 'delta', 'p', 'kept_local', 'train_loss')


def own_view(
  file: client_file.ClientFile, k: int, num_clients: int, largest: int
) -> client_data.ClientData:
  """Returns the clients of a run as client k knows them.

  The others have examples in number only: one row, repeated. So the client's
  draws, which depend on k, and the shapes of its batches, which depend on the
  largest client, are those of the simulation.

  Args:
    file: the data of the client.
    k: its number.
    num_clients: n.
    largest: the number of examples of the largest client.
  """
  data, facts = file.examples, file.facts
  assert data is not None
  parts = [np.zeros(1, np.int32)] * num_clients
  if largest > len(data.y):
    parts[k - 1] = np.zeros(largest, np.int32)
  parts[k] = np.arange(len(data.y), dtype=np.int32)
  return client_data.ClientData(
    data.x,
    data.y,
    parts,
    None,
    facts.num_classes,
    data.sample_weight,
    list(facts.class_names) or None,
  )


def model_digest(model: flat_model.FlatModel) -> str:
  """Returns what the architecture of a model is, as short text."""
  shapes = [(list(t.shape), t.trainable) for t in model.layout.tensors]
  layers = [type(layer).__name__ for layer in model.template._flatten_layers()]
  text = atomic_io.to_json([shapes, layers], None)
  digest = hashlib.sha256(text.encode()).hexdigest()[:16]
  return f'{model.size} parameters, {digest}'


def _outcome(output: Any) -> str:
  """Returns why an update is not uploaded, for the log."""
  if not output.finite:
    return ', not finite: dropped'
  return '' if output.sent else ', withheld'


def _failed(reason: str) -> bytes:
  return messages.encode({'status': 'failed', 'reason': reason})


def _own_id(folder: pathlib.Path) -> str:
  """Returns the id of a state folder; draws it once."""
  path = folder / 'id'
  with contextlib.suppress(FileNotFoundError, ValueError):
    return str(uuid.UUID(path.read_text().strip()))
  own = str(uuid.uuid4())
  atomic_io.write_text(path, own + '\n')
  return own
