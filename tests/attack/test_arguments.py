"""Python calls: an argument has an effect or is refused by name."""

import dataclasses

import keras
import pytest

import safl_tf
from safl_tf import attacks
from safl_tf.algorithms import registry
from safl_tf.core import checked, client_config, process
from safl_tf.data import partition
from safl_tf.rules import aggregate, gate, mix
from safl_tf.training import checkpoint, loop
from safl_tf.util import errors, validation
from tests import tiny

LocalConfig = client_config.LocalConfig


def build(*args, **kwargs):
  return lambda: registry.build(*args, **kwargs)


def local(name, **settings):
  """A process of an algorithm whose clients train with these settings."""
  return lambda: checked.config(registry.build(name), LocalConfig(**settings))


def make(**options):
  return lambda: process.FederatedProcess(
    tiny.dense, tiny.clients((8, 9)), safl_tf.build_fed_avg(), **options
  )


# (what is called, the error)
REFUSED = {
  'a typo': (
    build('safl', epsilom=0.9),
    'epsilom=0.9: did you mean epsilon? no such option; safl, aggregator=auto, '
    'server_optimizer=none takes epsilon, temperature, mix_granularity, ',
  ),
  'of another algorithm': (
    build('fedavg', nu=0.3),
    'nu=0.3: has no effect: fedavg, aggregator=auto, server_optimizer=none '
    'takes fraction, clients_per_round, proximal_mu; it is for extended_safl',
  ),
  'its default': (build('fedavg', nu=0.5), 'nu=0.5: has no effect: '),
  'of no algorithm': (build('safl', seed=3), 'seed=3: no such option; '),
  'of local training': (build('safl', batch_size=3), 'batch_size=3: no such '),
  'of no server': (build('safl', server_tau=1.0), 'server_tau=1.0: has no '),
  'of another server': (
    build('safl', server_optimizer='sgd', server_tau=1.0),
    'server_tau=1.0: has no effect: safl, aggregator=auto, server_optimizer=',
  ),
  'without its prefix': (
    build('safl', server_optimizer='adam', tau=1.0),
    'tau=1.0: ',
  ),
  'of a server, bad': (
    build('safl', server_optimizer='adam', server_beta_1=1.0),
    'server_beta_1=1.0: must be a number in [0, 1)',
  ),
  'rate of a server': (
    build('safl', server_optimizer='sgd', server_learning_rate=1e308),
    'server_learning_rate=1e+308: must be a number in (0, 1e+38]',
  ),
  'of another aggregator': (
    build('safl', aggregator='median', trim_fraction=0.1),
    'trim_fraction=0.1: has no effect: ',
  ),
  'of a replaced aggregator': (
    build('ida', aggregator='median', ida_norm='l1'),
    'ida_norm=l1: has no effect: ida, aggregator=median, ',
  ),
  'aggregator, centralized': (
    build('centralized', aggregator='krum'),
    'aggregator=krum: has no effect: there is one client',
  ),
  'aggregator, local_only': (
    build('local_only', aggregator='krum'),
    'aggregator=krum: has no effect: clients never receive',
  ),
  'server, local_only': (
    build('local_only', server_optimizer='adam'),
    'server_optimizer=adam: has no effect: clients never receive',
  ),
  'fraction, centralized': (
    build('centralized', fraction=0.5),
    'fraction=0.5: has no effect: centralized, aggregator=auto, '
    'server_optimizer=none takes proximal_mu; it is for local_only, ',
  ),
  'gamma, hungarian': (
    build('fedma', fedma_gamma=3.0),
    'fedma_gamma=3.0: has no effect on hungarian matching; it is for bbp',
  ),
  'holdout': (local('safl', holdout=0.2), 'holdout=0.2: has no effect with '),
  'clock, fedavg': (
    local('fedavg', anneal_clock='step'),
    'anneal_clock=step: has no effect with this algorithm: nothing is annealed',
  ),
  'clock, local_only': (
    local('local_only', anneal_clock='step'),
    'anneal_clock=step: has no effect ',
  ),
  'mu, local_only': (
    build('local_only', proximal_mu=1.0),
    'proximal_mu=1.0: has no effect: local_only, aggregator=auto, ',
  ),
  'mu, fedsgd': (build('fedsgd', proximal_mu=1.0), 'proximal_mu=1.0: has no '),
  'epochs, fedsgd': (
    local('fedsgd', local_epochs=5),
    'local_epochs=5: has no ',
  ),
  'optimizer clock, fedsgd': (
    local('fedsgd', optimizer_clock='run'),
    'optimizer_clock=run: has no effect ',
  ),
  'optimizer, fedsgd': (local('fedsgd', optimizer='adam'), 'optimizer=adam: '),
  'rate of a Keras optimizer': (
    lambda: LocalConfig(
      learning_rate=0.1, optimizer=keras.optimizers.SGD(0.01)
    ),
    'learning_rate=0.1: has no effect: the Keras optimizer has a learning rate',
  ),
  'stack, threads': (
    make(executor='threads', stack=2),
    'stack=2: has no effect on the executor threads; it is for vectorized',
  ),
  'stack, auto': (
    make(executor='auto', device='cpu', stack=2),
    'stack=2: has no effect on the executor threads; it is for vectorized',
  ),
  'strength': (
    lambda: attacks.Attack('label_flip', strength=2.0),
    'attack_strength=2.0: has no effect on label_flip; it is for sign_flip, ',
  ),
  'beta_2, momentum': (
    lambda: aggregate.server_optimizer(optimizer='momentum', beta_2=0.5),
    'beta_2=0.5: has no effect on momentum',
  ),
  'variance of equal parts': (
    lambda: partition.iid(2, variance_examples=3.0)(tiny.blobs(9)[1], 3),
    'variance_examples=3.0: has no effect on parts of equal sizes',
  ),
  # Absurd numbers, before memory is asked for.
  'clients': (
    lambda: partition.iid(10**12),
    'num_clients=1000000000000: ',
  ),
  'clients of shards': (
    lambda: partition.shards(10**12),
    'num_clients=1000000',
  ),
  'shards': (
    lambda: partition.shards(10**6, 10**6),
    'shards_per_client=1000000: must be at most 10 for 1000000 clients',
  ),
  'mean': (lambda: partition.by_labels(2, 7, 1e300), 'mean_examples=1e+300: '),
  'seed': (lambda: partition.quantity(2, seed=2**64), 'seed=1844674407370955'),
  'batch': (lambda: LocalConfig(batch_size=10**20), 'batch_size=1000000000000'),
  'epochs': (lambda: LocalConfig(local_epochs=10**12), 'local_epochs=10000000'),
  'rate': (lambda: LocalConfig(learning_rate=1e308), 'learning_rate=1e+308: '),
  'batches of a round': (
    make(config=LocalConfig(local_epochs=10**5, batch_size=10**6)),
    'local_epochs=100000: a client of 9 examples would have 100000 batches of ',
  ),
  'rounds': (
    lambda: loop.Schedule(rounds=10**30),
    'rounds=10000000000000',
  ),
  'checkpoints': (
    lambda: checkpoint.Checkpoints('no', keep=10**12),
    'keep=1000000000000: must be a whole number in [1, ',
  ),
  'clients per round': (
    build('safl', clients_per_round=10**12),
    'clients_per_round=1000000000000: must be a whole number in [1, ',
  ),
  'huge integer': (
    build('safl', temperature=10**400),
    'temperature=',
  ),
  'nan': (
    build('safl', epsilon=float('nan')),
    'epsilon=nan: must be ',
  ),
  'text': (build('safl', epsilon='0.3'), "epsilon='0.3': must be a number in "),
  'true': (lambda: LocalConfig(batch_size=True), 'batch_size=True: must be a '),
}


@pytest.mark.parametrize('call, message', REFUSED.values(), ids=REFUSED)
def test_refused(call, message):
  with pytest.raises(errors.InputError) as caught:
    call()
  assert str(caught.value).startswith(message)


@pytest.mark.parametrize('name', registry.BUILDERS)
def test_all_options_are_taken(name):
  """Each option that an algorithm takes, and none other, can be given."""
  rules = registry.build(name)
  for option in registry.arguments(name):
    builder = registry.BUILDERS[name]
    parameters = registry.inspect.signature(builder).parameters
    default = parameters[option].default if option in parameters else 0.1
    assert registry.build(name, **{option: default})
  assert rules


def test_rules_of_a_user_may_use_the_clock():
  """Only rules that are known not to use it refuse a clock."""

  def own_mix(seed, t, z_bar, z):
    return mix.replace()(seed, t, z_bar, z)

  step = LocalConfig(anneal_clock='step')
  rules = dataclasses.replace(safl_tf.build_fed_avg(), mix=own_mix)
  assert checked.config(rules, step) == step
  own_gate = gate.Gate(lambda *args: gate.always().decide(*args))
  rules = dataclasses.replace(safl_tf.build_fed_avg(), gate=own_gate)
  assert checked.config(rules, step) == step


def test_limits_are_the_same_in_python():
  """The largest number that a flag accepts is accepted in Python."""
  top = {n: limits.high for n, limits in validation.LIMITS.items()}
  assert LocalConfig(
    local_epochs=top['local_epochs'],
    batch_size=top['batch_size'],
    learning_rate=top['learning_rate'],
    holdout=top['holdout'],
  )
  assert loop.Schedule(top['rounds'], top['eval_every'], 1, 1.0)
  assert registry.build('extended_safl', temperature=top['temperature'])
  assert registry.build('feddyn', feddyn_alpha=top['feddyn_alpha'])
  assert registry.build('fedprox', proximal_mu=top['proximal_mu'])
  assert partition.dirichlet(top['num_clients'], top['dirichlet_alpha'])
