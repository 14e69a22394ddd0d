"""Takes tasks from Flower: a resident process is the app, not one per task."""

import contextlib
from collections.abc import Sequence
from typing import Any

import httpx
from flwr.proto.runtime_pb2 import (
  AcquireTaskRequest,
  AcquireTaskResponse,
  SendTaskHeartbeatRequest,
)
from flwr.supercore.constant import TaskType
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.interceptors import (
  RuntimeTokenHttpInterceptor,
  RuntimeVersionHttpInterceptor,
  SuperExecAuthHttpInterceptor,
)
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity

_TRIES = 3
_ACQUIRE = frozenset({'/flwr.proto.Runtime/AcquireTask'})


class Tasks:
  """The pending tasks of a SuperLink or a SuperNode on this machine.

  Args:
    address: HOST:PORT.
    secret: of those who may take tasks.
    kind: of the tasks.
    interceptors: further ones for all requests.
  """

  def __init__(
    self,
    address: str,
    secret: bytes,
    kind: TaskType,
    interceptors: Sequence[Any] = (),
  ):
    self._address = address
    self._kind = kind
    self._interceptors = interceptors
    signature = SuperExecAuthHttpInterceptor(
      master_secret=secret, protected_methods=_ACQUIRE
    )
    self._client = self._connect('SuperExec', signature)

  def acquire(self) -> AcquireTaskResponse | None:
    """Takes the oldest task; None if there is none."""
    request = AcquireTaskRequest(supported_task_types=[self._kind])
    response = self._client.AcquireTask(request)
    return response if response.token else None

  def client(self, token: str) -> RuntimeHttpClient:
    """Returns what speaks for the task with a token."""
    return self._connect(str(self._kind), RuntimeTokenHttpInterceptor(token))

  def close(self) -> None:
    """Closes the connection."""
    self._client.close()

  def _connect(self, component: str, identity: Any) -> RuntimeHttpClient:
    retry = make_simple_http_retry_invoker()
    retry.max_tries = _TRIES
    version = RuntimeVersionHttpInterceptor(component_name=component)
    return RuntimeHttpClient.from_server_address(
      self._address,
      True,
      None,
      [version, identity, *self._interceptors],
      retry_invoker=retry,
    )


def heartbeat(client: RuntimeHttpClient) -> HeartbeatSender:
  """Starts the heartbeat of a task; failures are left to other requests."""

  def beat() -> bool:
    with contextlib.suppress(httpx.HTTPError, RuntimeError):
      client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
    return True

  sender = HeartbeatSender(beat)
  sender.start()
  return sender


def end_heartbeat(sender: HeartbeatSender) -> None:
  """Ends a heartbeat without waiting for its request."""
  sender._stop_event.set()


def set_identity(task: Any) -> None:
  """Tells Flower which task this process works on; messages need it."""
  TaskIdentity.task_id = task.task_id
  TaskIdentity.run_id = task.run.run_id
  TaskIdentity.node_id = task.context.node_id
