"""Rounds of a process with a tiny model."""

import dataclasses

import safl_tf
from safl_tf.core import client_config, process
from tests import tiny

SIZES = (20, 13, 31, 7, 1, 16)
CLIENTS = tiny.clients(SIZES)
CONFIG = client_config.LocalConfig(
  local_epochs=2, batch_size=8, learning_rate=0.02
)


SAFL = safl_tf.build_safl()
ONE_STEP = dataclasses.replace(CONFIG, local_epochs=1)


def make(algorithm=SAFL, model=tiny.dense, clients=CLIENTS, **options):
  config = ONE_STEP if algorithm.client_work.full_batch else CONFIG
  options = {'config': config, 'jit_compile': 'false', **options}
  return process.FederatedProcess(model, clients, algorithm, **options)


def run(trainer, rounds, seed=0):
  """The states after each round, and the metrics of each."""
  states, metrics = [trainer.initialize(seed)], []
  for _ in range(rounds):
    state, measured = trainer.next(states[-1])
    states.append(state)
    metrics.append(measured)
  return states, metrics


def train(model, folder, rounds=1):
  """A run of SAFL with a folder."""
  return safl_tf.train(
    model,
    CLIENTS,
    rounds=rounds,
    config=CONFIG,
    output_dir=folder,
    progress=False,
    jit_compile='false',
  )


def check_same(one, other):
  """Bit for bit."""
  assert one.t == other.t
  assert one.z_bar.tobytes() == other.z_bar.tobytes()
  mine, others = one.client_models.to_arrays(), other.client_models.to_arrays()
  for name in mine:
    assert mine[name].tobytes() == others[name].tobytes()
