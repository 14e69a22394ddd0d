"""pfl, PyTorch models: the simulated backend in two worker processes.

  pip install torch==2.13.0
  pip install -r benchmarks/peers/requirements/pfl_torch.txt
  python benchmarks/peers/pfl_torch.py work.npz

The script starts its workers with torchrun, as pfl's documentation recommends;
each has one thread, trains every second client of a round, and takes part in
the all-reduce. The rounds are those of pfl's own FederatedAveraging.
"""

import os
import sys
import warnings

import common
import models_torch
import numpy as np
import torch
import torch.distributed.run

WORKERS = 2


def run(work: common.Work) -> tuple[str, str, list[float], float]:
  """Trains and evaluates in this worker; see `common.main`."""
  warnings.filterwarnings('ignore', category=FutureWarning)
  import pfl.version
  from pfl.aggregate.simulate import SimulatedBackend
  from pfl.aggregate.weighting import WeightByDatapoints
  from pfl.algorithm.base import NNAlgorithmParams
  from pfl.algorithm.federated_averaging import FederatedAveraging
  from pfl.callback.base import TrainingProcessCallback
  from pfl.context import CentralContext
  from pfl.data.federated_dataset import FederatedDataset
  from pfl.data.pytorch import PyTorchTensorDataset
  from pfl.data.sampling import get_user_sampler
  from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
  from pfl.metrics import Metrics
  from pfl.model.pytorch import PyTorchModel
  from pfl.stats import MappedVectorStatistics

  class Module(models_torch.model_class(work)):
    """The model with the two methods that pfl requires."""

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
      return models_torch.batch_loss(self, x, y)

    def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict:
      return {}  # pfl evaluates in the first round at any frequency

  class Algorithm(FederatedAveraging):
    """Federated averaging on the planned batches of the round."""

    def train_one_user(
      self,
      initial_model_state: MappedVectorStatistics,
      model: PyTorchModel,
      user_dataset: PyTorchTensorDataset,
      central_context: CentralContext,
    ) -> tuple[MappedVectorStatistics, Metrics]:
      t = central_context.current_central_iteration
      rows = user_dataset.metadata['plan'][t].flatten()
      x, y = user_dataset.raw_data
      batches = PyTorchTensorDataset((x[rows], y[rows]))
      return super().train_one_user(
        initial_model_state, model, batches, central_context
      )

  class Rounds(TrainingProcessCallback):
    """Calls the stopwatch."""

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
      stopwatch()
      return Metrics()

    def after_central_iteration(
      self,
      aggregate_metrics: Metrics,
      model: PyTorchModel,
      *,
      central_iteration: int,
    ) -> tuple[bool, Metrics]:
      stopwatch()
      return False, Metrics()

  np.random.seed(0)  # pfl needs equal seeds in all workers
  rounds, num_clients, _, batch = work.plan.shape
  stopwatch = common.Stopwatch()
  x, y = models_torch.data(work)
  users = []
  for k in range(num_clients):
    # The client's examples, and the plan as indices into them.
    own, plan = np.unique(work.plan[:, k], return_inverse=True)
    plan = torch.from_numpy(plan.reshape(work.plan[:, k].shape))
    users.append(
      PyTorchTensorDataset((x[own], y[own]), metadata={'plan': plan})
    )
  dataset = FederatedDataset(
    users.__getitem__, get_user_sampler('minimize_reuse', range(num_clients))
  )
  module = Module(work.weights)
  Algorithm().run(
    NNAlgorithmParams(
      central_num_iterations=rounds,
      evaluation_frequency=rounds,
      train_cohort_size=num_clients,
      val_cohort_size=0,
    ),
    SimulatedBackend(dataset, dataset, [WeightByDatapoints()]),
    PyTorchModel(
      module,
      local_optimizer_create=torch.optim.SGD,
      central_optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
    ),
    NNTrainHyperParams(
      local_batch_size=batch,
      local_num_epochs=1,
      local_learning_rate=work.learning_rate,
    ),
    NNEvalHyperParams(local_batch_size=None),
    callbacks=[Rounds()],
    send_metrics_to_platform=False,
  )
  loss = models_torch.test_loss(module, work)
  return 'pfl (PyTorch)', pfl.version.__version__, stopwatch.seconds, loss


if __name__ == '__main__':
  if 'RANK' not in os.environ:
    os.environ['OMP_NUM_THREADS'] = '1'
    torch.distributed.run.main(
      ['--standalone', f'--nproc-per-node={WORKERS}', *sys.argv]
    )
  elif os.environ['RANK'] == '0':
    common.main(run)
  else:
    run(common.load(sys.argv[1]))
