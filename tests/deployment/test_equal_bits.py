"""Real clients have the bits of the simulation, through Flower's Grid."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

from binaries.flags import deployment
from safl_tf.algorithms import registry
from safl_tf.core import client_config
from safl_tf.util import choices
from tests import marks, tasks, tiny, tiny_rounds
from tests.deployment import loopback

CLIENTS = tiny.clients((20, 1, 31))
DEPLOYABLE = [
  name for name in registry.BUILDERS if name not in deployment._SIMULATED_ONLY
]


def measured(metrics):
  """The bytes of a round's metrics without those of the wire."""
  values = metrics._asdict()
  del values['wire'], values['workers']
  values |= {f'metrics/{n}': v for n, v in values.pop('metrics').items()}
  return {name: np.asarray(value).tobytes() for name, value in values.items()}


def check(federation, rounds=3):
  """Compares a federation with its simulation, round by round."""
  simulated, deployed = federation.simulation(), federation.process()
  one = simulated.initialize(federation.seed)
  other = deployed.initialize(federation.seed)
  for _ in range(rounds):
    one, mine = simulated.next(one)
    other, others = deployed.next(other)
    federation.check_same(one, other)
    assert measured(mine) == measured(others)
    assert others.wire.bytes_up > others.bytes_up
    assert others.wire.bytes_down > others.bytes_down
  assert other.z_bar is not None
  return other


def check_algorithm(folder, algorithm, clients=CLIENTS):
  config = tiny_rounds.CONFIG
  if algorithm.client_work.full_batch:
    config = tiny_rounds.ONE_STEP
  federation = loopback.Federation(
    folder, clients, algorithm=algorithm, config=config, seed=7
  )
  return federation, check(federation)


@pytest.mark.parametrize('name', registry.BUILDERS)
def test_which_algorithms_run_on_real_clients(name):
  algorithm = registry.build(name)
  is_deployable = (
    algorithm.communicates
    and not algorithm.pooled
    and not algorithm.alone
    and algorithm.driver is None
  )
  assert is_deployable == (name in DEPLOYABLE)


@pytest.mark.parametrize(
  'name',
  marks.some(DEPLOYABLE, ['fedavg', 'fedsgd', 'scaffold']),
)
def test_algorithm(tmp_path, name):
  check_algorithm(tmp_path, registry.build(name))


@pytest.mark.parametrize('name', ['astw_safl'])
def test_some_clients_per_round(tmp_path, name):
  algorithm = registry.build(name, clients_per_round=2)
  federation, _ = check_algorithm(tmp_path, algorithm, tiny_rounds.CLIENTS)
  rounds = [federation.kept_by(k) for k in range(federation.n)]
  assert len({kept.t for kept in rounds if kept is not None}) > 1


@pytest.mark.parametrize('name', marks.some(registry.AGGREGATORS, ['median']))
def test_aggregator(tmp_path, name):
  clients = CLIENTS if name == 'median' else tiny_rounds.CLIENTS
  check_algorithm(tmp_path, registry.build('safl', aggregator=name), clients)


@pytest.mark.parametrize(
  'name', marks.some(choices.SERVER_OPTIMIZERS, ['adam'])
)
def test_server_optimizer(tmp_path, name):
  check_algorithm(tmp_path, registry.build('fedavg', server_optimizer=name))


@pytest.mark.parametrize('name', marks.some(tiny.MODELS, ['tuple of inputs']))
def test_model(tmp_path, name):
  model, inputs = tiny.MODELS[name]
  x, y = tiny.blobs(sum(tasks.SIZES))
  clients = tiny.clients(tasks.SIZES, inputs(x), y)
  options = {'from_logits': True}
  federation = loopback.Federation(
    tmp_path, clients, model, process_options=options
  )
  check(federation, 2)


def test_a_model_with_a_state_and_random_layers(tmp_path):
  check(loopback.Federation(tmp_path, CLIENTS, tiny.normalised), 2)


@pytest.mark.parametrize('name', marks.some(tasks.TASKS, ['several labels']))
def test_task(tmp_path, name):
  model, _, _, loss, _ = tasks.TASKS[name]
  federation = loopback.Federation(
    tmp_path,
    tasks.data(name),
    model,
    process_options={'loss': loss},
  )
  check(federation, 2)


CONFIGS = {
  'schedule': client_config.LocalConfig(
    local_epochs=2,
    batch_size=8,
    optimizer=keras.optimizers.SGD(
      keras.optimizers.schedules.ExponentialDecay(0.05, 2, 0.5)
    ),
    optimizer_clock='run',
  ),
  'steps': dataclasses.replace(
    tiny_rounds.CONFIG, anneal_clock='step', loss_reduction='mean'
  ),
  'held out': dataclasses.replace(tiny_rounds.CONFIG, holdout=0.3),
  'adam': dataclasses.replace(tiny_rounds.CONFIG, optimizer='adam'),
}


@pytest.mark.slow
@pytest.mark.parametrize('name', CONFIGS)
def test_config(tmp_path, name):
  algorithm = registry.build('extended_safl')
  check(
    loopback.Federation(
      tmp_path, CLIENTS, algorithm=algorithm, config=CONFIGS[name]
    )
  )


OPTIONS = {
  'one initial model': {'init': 'shared'},
  'initial models': {'init': 'per_client'},
  'weights of classes': {'class_weight': {0: 1.0, 1: 2.5, 2: 0.5}},
  'metrics': {'metrics': ['accuracy', 'mse']},
  'score': {'score': lambda y, outputs: tf.nn.softmax(outputs)[:, 0]},
}


@pytest.mark.parametrize('name', marks.some(OPTIONS, ['weights of classes']))
def test_options(tmp_path, name):
  federation = loopback.Federation(
    tmp_path,
    CLIENTS,
    algorithm=registry.build('extended_safl' if name == 'score' else 'safl'),
    process_options=OPTIONS[name],
  )
  check(federation)


def test_a_given_model_with_weights(tmp_path):
  check(loopback.Federation(tmp_path, CLIENTS, tiny.dense()))


def test_several_metrics(tmp_path):
  """The gate reads some, of held-out examples, and the aggregator others."""
  algorithm = registry.build('extended_safl')
  rule, needs = algorithm.aggregate, ('loss', 'distance', 'train_loss')

  def apply(memory, updates, z_bar):
    assert set(updates.metrics) == set(needs)
    return rule.apply(memory, updates, z_bar)

  algorithm = dataclasses.replace(
    algorithm, aggregate=rule._replace(apply=apply, needs=needs)
  )
  federation = loopback.Federation(
    tmp_path, CLIENTS, algorithm=algorithm, config=CONFIGS['held out']
  )
  check(federation)


@pytest.mark.slow
@pytest.mark.parametrize('model', [tiny.dense, tiny.normalised])
def test_compiled_by_xla(tmp_path, model):
  options = {'jit_compile': 'true'}
  check(loopback.Federation(tmp_path, CLIENTS, model, process_options=options))


@pytest.mark.parametrize(
  'name',
  marks.some(['feddyn', 'extended_safl', 'scaffold_safl'], ['scaffold_safl']),
)
def test_a_server_that_starts_again(tmp_path, name):
  algorithm = registry.build(name)
  config = tiny_rounds.CONFIG
  if algorithm.client_work.full_batch:
    config = tiny_rounds.ONE_STEP
  federation = loopback.Federation(
    tmp_path, CLIENTS, algorithm=algorithm, config=config
  )
  states, _ = tiny_rounds.run(federation.simulation(), 4)
  first = federation.process()
  state, _ = first.next(first.initialize(0))
  state, _ = first.next(state)
  second = federation.process(federation.record)
  state, _ = second.next(state)
  state, _ = second.next(state)
  federation.check_same(states[-1], state)
