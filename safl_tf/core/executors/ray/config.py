"""Where workers run on a Ray cluster, and how much each of them gets."""

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

from safl_tf.util import errors, validation


@dataclasses.dataclass(frozen=True)
class RayConfig:
  """The workers of a Ray cluster, for `executor=`; results do not depend on it.

  Ray comes with `pip install 'safl_tf[ray]'`. Pass the configuration as the
  `executor` of `train` or `FederatedProcess`; 'ray' there means the defaults.

  Attributes:
    address: 'local' starts Ray on this machine; 'auto' or 'HOST:PORT' joins the
      cluster that this machine is a node of.
    workers: the number of workers. By default one per GPU, or without GPUs one
      per node.
    cpus_per_worker: clients that a worker trains at a time. By default the
      cores of a node are divided among its workers.
    gpus_per_worker: 0 trains on CPUs. By default 1 if the cluster has GPUs.
    chunk: clients per message to a worker. By default each worker gets about
      four messages in a round.
    timeout: seconds after which a worker that has not started, or that does not
      answer, counts as lost; and seconds without any worker after which a run
      ends with an error.

  Example:
    ```python
    executor = safl_tf.RayConfig(
      address='auto', workers=4, cpus_per_worker=8, timeout=60)
    ```
  """

  address: str = 'local'
  workers: int | None = None
  cpus_per_worker: int | None = None
  gpus_per_worker: float | None = None
  chunk: int | None = None
  timeout: float = 120.0

  def __post_init__(self) -> None:
    for field in dataclasses.fields(self)[1:]:
      value = getattr(self, field.name)
      if value is not None:
        validation.limited(f'ray_{field.name}', value)
    validation.ray_address('ray_address', self.address)


class Node(NamedTuple):
  """A node of a cluster, with the CPUs and GPUs that Ray knows of.

  Attributes:
    id: Ray's name for it.
    host: its name, for messages.
    address: HOST:PORT of its Ray process.
    cpus: as Ray counts them.
    gpus: as Ray counts them.
  """

  id: str
  host: str
  address: str
  cpus: int
  gpus: int


class Slot(NamedTuple):
  """The place of a worker: a node, and a share of its CPUs and GPUs."""

  node: Node
  cpus: int
  gpus: float


def gpus_per_worker(
  config: RayConfig, nodes: Sequence[Node], device: str
) -> float:
  """Returns the GPUs of each worker; 0 to train on CPUs.

  Args:
    config: of the workers.
    nodes: of the cluster.
    device: 'auto', 'cpu' or 'gpu'.
  """
  if device not in ('auto', 'cpu', 'gpu'):
    hint = 'must be auto, cpu or gpu with the executor ray: workers share GPUs'
    raise errors.InputError('device', device, hint)
  wanted = config.gpus_per_worker
  if device == 'cpu':
    if wanted:
      hint = 'has no effect with the device cpu'
      raise errors.InputError('ray_gpus_per_worker', wanted, hint)
    return 0
  has_gpus = any(node.gpus for node in nodes)
  if device == 'gpu' and (wanted == 0 or not has_gpus):
    hint = 'the Ray cluster has no GPU' if wanted is None else 'needs GPUs'
    raise errors.InputError('device', device, hint)
  return float(has_gpus) if wanted is None else wanted


def plan(
  config: RayConfig,
  nodes: Sequence[Node],
  gpus: float,
  used: Sequence[Slot] = (),
) -> list[Slot]:
  """Returns places for the workers that are missing, spread over nodes.

  Args:
    config: of the workers.
    nodes: that are alive, the preferred ones first.
    gpus: of each worker.
    used: the places of the workers that there are.
  """
  hosts = [node for node in nodes if node.cpus >= 1 and node.gpus >= gpus]
  share = math.ceil((config.workers or 1) / max(len(hosts), 1))
  rows = []
  for node in hosts:
    count = math.floor(node.gpus / gpus + 1e-9) if gpus else share
    count = min(count, node.cpus)
    cpus = config.cpus_per_worker or node.cpus // count
    if config.cpus_per_worker and not gpus:
      count = node.cpus // cpus
    others = [slot for slot in used if slot.node.id == node.id]
    free = node.cpus - sum(slot.cpus for slot in others)
    count = min(count - len(others), free // cpus)
    rows.append([Slot(node, cpus, gpus)] * count)
  depth = max(map(len, rows), default=0)
  slots = [row[i] for i in range(depth) for row in rows if i < len(row)]
  if config.workers is None:
    return slots
  return slots[: max(config.workers - len(used), 0)]


def check_room(config: RayConfig, slots: Sequence[Slot]) -> None:
  """Refuses a cluster with too little room, before anything has started."""
  if not slots:
    wanted = f'{config.cpus_per_worker or 1} CPUs'
    if config.gpus_per_worker:
      wanted += f' and {config.gpus_per_worker:g} GPUs'
    hint = f'no node of the cluster has {wanted} for a worker'
    raise errors.InputError('ray_address', config.address, hint)
  if config.workers is not None and len(slots) < config.workers:
    hint = (
      f'the cluster has room for {len(slots)}; close other processes on it '
      '(FederatedProcess.close), or add nodes'
    )
    raise errors.InputError('ray_workers', config.workers, hint)
