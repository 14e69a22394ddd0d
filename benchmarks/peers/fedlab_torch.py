"""FedLab, PyTorch models: the standalone pipeline, clients in series.

  pip install torch==2.13.0
  pip install -r benchmarks/peers/requirements/fedlab_torch.txt
  pip install --no-deps fedlab==1.3.0
  python benchmarks/peers/fedlab_torch.py work.npz

The rounds are those of FedLab's own pipeline, trainer and server handler. Its
average is over clients, not examples, which is equivalent here, as all have
equally many. PyTorch uses one thread unless OMP_NUM_THREADS is set: two were
often ten times slower when other processes ran concurrently.
"""

# ruff: noqa: E402

import os
import sys
import types
from collections.abc import Sequence

os.environ.setdefault('OMP_NUM_THREADS', '1')

import common
import models_torch
import torch
from torch.utils.data import DataLoader, TensorDataset

# FedLab imports torchvision for datasets of its own. None is used here, and
# the torchvision of PyPI does not load beside a PyTorch without CUDA.
sys.modules['torchvision'] = types.ModuleType('torchvision')
sys.modules['torchvision'].transforms = None

import fedlab
from fedlab.contrib.algorithm.fedavg import (
  FedAvgSerialClientTrainer,
  FedAvgServerHandler,
)
from fedlab.contrib.dataset.basic_dataset import FedDataset
from fedlab.core.standalone import StandalonePipeline


class PlannedBatches(FedDataset):
  """The planned batches of each client in the current round."""

  def __init__(self, work: common.Work) -> None:
    super().__init__()
    self.num = work.plan.shape[1]
    self.round = 0
    self._examples = TensorDataset(*models_torch.data(work))
    self._plan = torch.from_numpy(work.plan)

  def get_dataloader(
    self, id: int, batch_size: int, type: str = 'train'
  ) -> DataLoader:
    """Returns batches; the sampler yields the rows of one at a time."""
    return DataLoader(
      self._examples, batch_size=None, sampler=self._plan[self.round, id]
    )


class Server(FedAvgServerHandler):
  """Sends the round number to the clients."""

  @property
  def downlink_package(self) -> list[torch.Tensor]:
    """The weights and the round number."""
    return [self.model_parameters, torch.tensor(self.round)]


class Clients(FedAvgSerialClientTrainer):
  """Trains on the batches of the server's round."""

  def local_process(
    self, payload: list[torch.Tensor], id_list: Sequence[int]
  ) -> None:
    """Trains the clients one after another."""
    self.dataset.round = int(payload[1])
    super().local_process(payload, id_list)


class Pipeline(StandalonePipeline):
  """Calls the stopwatch in place of evaluation."""

  stopwatch = common.Stopwatch()

  def evaluate(self) -> None:
    """Ends a round."""
    self.stopwatch()


def run(work: common.Work) -> tuple[str, str, list[float], float]:
  """Trains and evaluates; see `common.main`."""
  rounds, num_clients, _, batch = work.plan.shape
  model = models_torch.model_class(work)(work.weights)
  clients = Clients(model, num_clients)
  clients.setup_dataset(PlannedBatches(work))
  clients.setup_optim(epochs=1, batch_size=batch, lr=work.learning_rate)
  clients.criterion = torch.nn.CrossEntropyLoss(reduction='sum')
  server = Server(model, global_round=rounds, sample_ratio=1.0)
  pipeline = Pipeline(server, clients)
  pipeline.stopwatch()
  pipeline.main()
  loss = models_torch.test_loss(server.model, work)
  return (
    'FedLab (PyTorch)',
    fedlab.__version__,
    pipeline.stopwatch.seconds,
    loss,
  )


if __name__ == '__main__':
  common.main(run)
