"""The connection to a Ray cluster, or to Ray on this machine alone."""

import atexit
import contextlib
import functools
import os
import pathlib
import secrets
import signal
import socket
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from absl import logging

from safl_tf.core.executors.ray import config as config_lib
from safl_tf.core.executors.ray import temp_folder
from safl_tf.util import errors, hardware

_CONNECT_SECONDS = 5.0  # for the head to answer
_MAX_FAILURES = 3  # of the head to answer
_NODES_SECONDS = 2.0  # for the head to list nodes
_RETRY_SECONDS = 0.05
_WATCH_SECONDS = 2.0  # until a silent head is tried again
_MAX_LOCAL_CPUS = 4  # on a machine with fewer cores
_RAY_LOG_LEVEL = 40  # ERROR, of Python's logging


class Cluster:
  """A connection to Ray, which `close` ends unless the user made it.

  Attributes:
    address: HOST:PORT of the head.

  Args:
    config: says where the cluster is.
  """

  def __init__(self, config: config_lib.RayConfig):
    import ray

    self._ray = ray
    self._head = _Head()
    self._nodes: list[config_lib.Node] = []
    folder: temp_folder.TempFolder | None = None
    variables: dict[str, str | None] = {}
    if ray.is_initialized():
      self.address = ray.get_runtime_context().gcs_address
      port = self.address.rpartition(':')[2]  # the host may have other names
      if config.address.rpartition(':')[2] not in ('local', 'auto', port):
        hint = f'this process is connected to {self.address} already'
        raise errors.InputError('ray_address', config.address, hint)
      logging.info('uses the Ray cluster at %s', self.address)
      self._close: Callable[[], object]
      self._close = weakref.finalize(self, self._head.stop)
      self._head.watch(self.address)
      return
    options: dict[str, Any] = {}
    if config.address == 'local':
      options = _local_options(config)
      folder = temp_folder.TempFolder()
      options['_temp_dir'] = folder.path
      variables = _set_variables()
    else:
      _check_answers(config.address)
    self._close = weakref.finalize(
      self, _disconnect, self._head, folder, variables
    )
    try:
      with _explaining(config.address), _own_signals():
        ray.init(
          config.address,
          logging_level=_RAY_LOG_LEVEL,
          log_to_driver=False,
          **options,
        )
    except BaseException:
      self._close()
      raise
    self.address = ray.get_runtime_context().gcs_address
    self._head.watch(self.address)

  def nodes(self) -> list[config_lib.Node]:
    """Returns the nodes that are alive, as of the last answer of the head."""
    # Ray's public ray.nodes would stop all threads if there is no answer.
    worker: Any = self._ray._private.worker.global_worker
    with contextlib.suppress(self._ray.exceptions.RpcError):
      infos = worker.gcs_client.get_all_node_info(timeout=_NODES_SECONDS)
      self._nodes = [_node(i) for i in infos.values() if i.state == i.ALIVE]
    return self._nodes

  def check_head(self) -> None:
    """Raises an error if the head is gone: calls to Ray would wait for it."""
    if self._head.is_gone:
      raise errors.RunError(
        f'the head of the Ray cluster at {self.address} is gone; start a '
        'cluster, then the same command resumes'
      )

  @property
  def is_gone(self) -> bool:
    """Whether the head is gone."""
    return self._head.is_gone

  def close(self) -> None:
    """Disconnects; ends what was started on this machine."""
    self._close()


def _node(info: Any) -> config_lib.Node:
  """Returns a node as Ray's message describes it."""
  address = info.node_manager_address
  resources = info.resources_total
  return config_lib.Node(
    id=info.node_id.hex(),
    host=f'{info.node_manager_hostname} ({address})',
    address=f'{address}:{info.node_manager_port}',
    cpus=int(resources.get('CPU', 0)),
    gpus=int(resources.get('GPU', 0)),
  )


class _Head:
  """Watches the head of a cluster in a thread.

  Ray ends a process that has lost the head or its own node, within seconds or
  a minute and without an exception. So the log says it first.

  Attributes:
    is_gone: whether it does not answer any more.
  """

  def __init__(self) -> None:
    self._stopped = threading.Event()
    self.is_gone = False

  def watch(self, address: str) -> None:
    """Begins to watch the head at an address."""
    threading.Thread(target=self._watch, args=[address], daemon=True).start()

  def stop(self) -> None:
    """Ends the watch."""
    self._stopped.set()

  def _watch(self, address: str) -> None:
    """Holds a connection open, since a head that dies closes it at once."""
    failures = 0
    while failures < _MAX_FAILURES and not self._stopped.wait(_RETRY_SECONDS):
      try:
        connection = _connect(address)
      except OSError:
        failures += 1
        continue
      failures = 0
      with connection, contextlib.suppress(OSError):
        connection.settimeout(_WATCH_SECONDS)
        while connection.recv(4096):
          pass
    if not self._stopped.is_set():
      self.is_gone = True
      logging.error('the head of the Ray cluster does not answer any more')


def _disconnect(
  head: _Head,
  folder: temp_folder.TempFolder | None,
  variables: dict[str, str | None],
) -> None:
  """Ends the connection, and deletes the files of a local Ray."""
  import ray

  head.stop()
  if head.is_gone:
    # Ray would ask the head, before an error is shown and again at the exit,
    # wait for a minute and then end this process.
    sys.excepthook = ray._private.worker.normal_excepthook
    atexit.unregister(ray.shutdown)
    atexit.register(_end)
  else:
    ray.shutdown()
  for name, value in variables.items():
    if value is None:
      os.environ.pop(name, None)
    else:
      os.environ[name] = value
  if folder is not None:
    folder.close()


def _end() -> None:
  """Ends this process without Ray's clean-up, which would crash it."""
  sys.stdout.flush()
  sys.stderr.flush()
  os._exit(1)


def _set_variables() -> dict[str, str | None]:
  """Sets variables for a local Ray; returns those of before.

  A token of its own keeps Ray from writing one to the user's home.
  """
  wanted = {'RAY_USAGE_STATS_ENABLED': '0'}
  known = ('RAY_AUTH_MODE', 'RAY_AUTH_TOKEN', 'RAY_AUTH_TOKEN_PATH')
  saved = pathlib.Path.home() / '.ray' / 'auth_token'
  if not saved.exists() and not any(name in os.environ for name in known):
    wanted['RAY_AUTH_TOKEN'] = _token()
  # Ray sets the mode itself.
  before = {name: os.environ.get(name) for name in ('RAY_AUTH_MODE', *wanted)}
  os.environ.update(wanted)
  return before


@functools.cache
def _token() -> str:
  """Returns the token of this process; Ray remembers the first one."""
  return secrets.token_hex()


def _local_options(config: config_lib.RayConfig) -> dict[str, Any]:
  """Returns the options of a Ray on this machine alone."""
  cores = hardware.num_cores()
  wanted = (config.workers or 1) * (config.cpus_per_worker or 1)
  limit = max(cores, _MAX_LOCAL_CPUS)
  if wanted > limit:
    name = 'ray_workers' if config.workers else 'ray_cpus_per_worker'
    hint = f'this machine has {cores} cores, so at most {limit} CPUs in all'
    raise errors.InputError(name, config.workers or wanted, hint)
  return {'num_cpus': max(cores, wanted), 'include_dashboard': False}


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
  """Keeps the handler of SIGTERM, which Ray replaces."""
  handler = signal.getsignal(signal.SIGTERM)
  try:
    yield
  finally:
    if threading.current_thread() is threading.main_thread():
      signal.signal(signal.SIGTERM, handler)


@contextlib.contextmanager
def _explaining(address: str) -> Iterator[None]:
  """Turns Ray's errors into one that names the address."""
  import ray

  try:
    yield
  except (ray.exceptions.RayError, OSError, RuntimeError, ValueError) as error:
    hint = errors.reason(error)
    if isinstance(error, ray.exceptions.AuthenticationError | ConnectionError):
      reason = 'Ray did not let this process in'
      if address == 'auto':
        reason = 'found no Ray on this machine that lets this process in'
      hint = (
        f'{reason}; join the cluster with ray start, and if it has a token, '
        'set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH'
      )
    raise errors.InputError('ray_address', address, hint) from error


def _check_answers(address: str) -> None:
  if address != 'auto' and not answers(address):
    hint = (
      f'nothing answers there within {_CONNECT_SECONDS:g} s; ray start --head '
      'prints the address'
    )
    raise errors.InputError('ray_address', address, hint)


def answers(address: str, seconds: float = _CONNECT_SECONDS) -> bool:
  """Returns whether a server accepts connections within some seconds."""
  try:
    _connect(address, seconds).close()
  except OSError:
    return False
  return True


def _connect(address: str, seconds: float = _CONNECT_SECONDS) -> socket.socket:
  host, _, port = address.rpartition(':')
  return socket.create_connection((host.strip('[]'), int(port)), seconds)
