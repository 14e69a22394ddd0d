"""Flower, PyTorch clients: the simulation with two Ray actors of one CPU.

  pip install torch==2.13.0
  pip install -r benchmarks/peers/requirements/flower_torch.txt
  python benchmarks/peers/flower_torch.py work.npz

The rounds are those of Flower's own FedAvg strategy, without evaluation. The
first one includes the start of Ray.
"""

import functools
import os
import sys

import common

os.environ['FLWR_TELEMETRY_ENABLED'] = '0'
os.environ['FLWR_LOG_LEVEL'] = 'ERROR'
os.environ['RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO'] = '0'  # avoids a warning

import flwr
import models_torch
import torch
from flwr.app import (
  ArrayRecord,
  ConfigRecord,
  Context,
  Message,
  MetricRecord,
  RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

ACTORS = 2

client_app = ClientApp()


@functools.cache
def load(path: str) -> tuple[common.Work, torch.Tensor, torch.Tensor]:
  """Reads the workload, its pixels and labels, once per actor."""
  torch.set_num_threads(1)
  work = common.load(path)
  return work, *models_torch.data(work)


@client_app.train()
def train(message: Message, context: Context) -> Message:
  """Trains a client for a round, in an actor."""
  config = message.content['config']
  work, x, y = load(config['work'])
  client = context.node_config['partition-id']
  plan = torch.from_numpy(work.plan[config['server-round'] - 1, client])
  model = models_torch.model_class(work)(work.weights)
  model.load_state_dict(message.content['arrays'].to_torch_state_dict())
  optimizer = torch.optim.SGD(model.parameters(), work.learning_rate)
  for rows in plan:
    optimizer.zero_grad()
    models_torch.batch_loss(model, x[rows], y[rows]).backward()
    optimizer.step()
  content = RecordDict(
    {
      'arrays': ArrayRecord(model.state_dict()),
      'metrics': MetricRecord({'num-examples': plan.numel()}),
    }
  )
  return Message(content=content, reply_to=message)


def run(work: common.Work) -> tuple[str, str, list[float], float]:
  """Trains and evaluates; see `common.main`."""
  rounds, num_clients = work.plan.shape[:2]
  model = models_torch.model_class(work)(work.weights)
  stopwatch = common.Stopwatch()
  server_app = ServerApp()

  @server_app.main()
  def main(grid: Grid, context: Context) -> None:
    # The server may count the clients before all are registered, and would
    # then train only some in the first round: the minimum prevents this.
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=num_clients)
    result = strategy.start(
      grid,
      ArrayRecord(model.state_dict()),
      num_rounds=rounds,
      train_config=ConfigRecord({'work': os.path.abspath(sys.argv[1])}),
      # Called before the first round and after each.
      evaluate_fn=lambda t, arrays: stopwatch(),
    )
    model.load_state_dict(result.arrays.to_torch_state_dict())

  run_simulation(
    server_app,
    client_app,
    num_supernodes=num_clients,
    backend_config={
      'init_args': {'num_cpus': ACTORS},
      'client_resources': {'num_cpus': 1, 'num_gpus': 0.0},
    },
  )
  loss = models_torch.test_loss(model, work)
  return 'Flower (PyTorch)', flwr.__version__, stopwatch.seconds, loss


if __name__ == '__main__':
  # Imported by name, so that the actors import this file and keep its caches;
  # Ray would send a new copy of functions of `__main__` with every message.
  import flower_torch

  common.main(flower_torch.run)
