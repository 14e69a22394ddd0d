"""States of other processes, divergence, and no thread left waiting."""

import dataclasses
import signal
import subprocess
import textwrap
import time

import keras
import numpy as np
import pytest

import safl_tf
from safl_tf.core import client_store
from safl_tf.training import run_directory
from safl_tf.util import errors
from tests import tiny, tiny_rounds
from tests.binaries import programs

pytestmark = pytest.mark.usefixtures('no_outputs')

FED_AVG = safl_tf.build_fed_avg()
ASTW = safl_tf.build_astw(astw_layerwise=False)
ADAM = dataclasses.replace(
  FED_AVG, aggregate=safl_tf.aggregate.server_optimizer()
)
SGD_ASTW = dataclasses.replace(
  safl_tf.build_fed_sgd(), aggregate=safl_tf.aggregate.temporal()
)


def after(rounds, *args, **options):
  """A state of a process."""
  return tiny_rounds.run(tiny_rounds.make(*args, **options), rounds)[0][-1]


@pytest.fixture(scope='module')
def state():
  return after(1, FED_AVG)


def few(algorithm, rounds=1):
  """A state of six clients, for a process of three."""
  return algorithm, tiny.clients((20, 13, 31)), after(rounds, algorithm)


def remembering(value, name='models'):
  """A state of ASTW with something else in its memory."""
  state = after(1, ASTW)
  return state._replace(memory=state.memory | {name: value})


def float64():
  return keras.Sequential(
    [keras.Input((8,)), keras.layers.Dense(3, dtype='float64')]
  )


# what is wrong with a state of FedAvg -> the new state, the message
CHANGED = {
  'a dict': (lambda s: s._asdict(), 'state=dict: is not a FederatedState'),
  'a tuple': (tuple, 'state=tuple: is not a FederatedState'),
  'none': (lambda s: None, 'state=NoneType: '),
  'state and metrics': (lambda s: (s, None), 'state=tuple: '),
  't of text': (lambda s: s._replace(t='1'), "state.t='1': "),
  't below 0': (lambda s: s._replace(t=-1), 'state.t=-1: '),
  'no seed': (lambda s: s._replace(seed=None), 'state.seed=None: '),
  'a list as z_bar': (
    lambda s: s._replace(z_bar=s.z_bar.tolist()),
    'state=z_bar of list: is not an array',
  ),
  'z_bar of another model': (
    lambda s: s._replace(z_bar=s.z_bar[:-1]),
    r'state=z_bar of float32 \[62\]: is of another model, not of float32 \[63',
  ),
  'z_bar with an axis': (
    lambda s: s._replace(z_bar=s.z_bar[None]),
    r'state=z_bar of float32 \[1, 63\]: ',
  ),
  'z_bar of another type': (
    lambda s: s._replace(z_bar=s.z_bar.astype(np.float64)),
    r'state=z_bar of float64 \[63\]: ',
  ),
  'NaN in z_bar': (
    lambda s: s._replace(z_bar=s.z_bar * np.nan),
    'state=z_bar: is not finite',
  ),
  'infinity in z_bar': (
    lambda s: s._replace(z_bar=np.append(s.z_bar[1:], np.float32(np.inf))),
    'state=z_bar: is not finite',
  ),
  'models in a dict': (
    lambda s: s._replace(clients={'z': {}}),
    'state=clients z: is not a ClientStore',
  ),
  'models without a name': (
    lambda s: s._replace(clients=s.client_models),
    'state=clients: is not a dict',
  ),
  'no models': (
    lambda s: s._replace(clients={}),
    'state=clients without z: is of another algorithm',
  ),
  'more than models, in a dict': (
    lambda s: s._replace(clients=s.clients | {'c': {}}),
    'state=clients c: is not a ClientStore',
  ),
  'more than models, of more clients': (
    lambda s: s._replace(clients=s.clients | {'c': UNKNOWN}),
    'state=client 6: is of more than 6 clients',
  ),
  'no memory': (lambda s: s._replace(memory=None), 'state=memory: is not a'),
  'models of another size': (
    lambda s: s._replace(
      clients={'z': s.client_models.updated({2: np.zeros(5, np.float32)})}
    ),
    r'state=a model of float32 \[5\] for client 2: ',
  ),
  'models of another type': (
    lambda s: s._replace(clients={'z': s.client_models.updated({0: ZEROS})}),
    r'state=a model of float64 \[63\] for client 0: ',
  ),
}
ZEROS = np.zeros(63)
UNKNOWN = client_store.ClientStore(lambda k: ZEROS).updated({6: ZEROS})


@pytest.mark.parametrize('executor', ['threads', 'vectorized', 'serial'])
@pytest.mark.parametrize('change, message', CHANGED.values(), ids=CHANGED)
def test_changed_states(processes, state, executor, change, message):
  trainer = processes[executor]
  with pytest.raises(errors.InputError, match=f'^{message}'):
    trainer.next(change(state))
  if 'for client' not in message:
    with pytest.raises(errors.InputError, match=f'^{message}'):
      trainer.get_model(change(state))


@pytest.fixture(scope='module')
def processes():
  """Processes that have refused states go on with sound ones."""
  made = {
    name: tiny_rounds.make(FED_AVG, executor=name)
    for name in ('threads', 'vectorized', 'serial')
  }
  yield made
  for trainer in made.values():
    states, _ = tiny_rounds.run(trainer, 2)
    assert np.isfinite(states[-1].z_bar).all()


# algorithm and clients of a process, a state of another one -> the message
OTHERS = {
  'of more clients': (lambda: few(FED_AVG), 'state=client 5: is of more than'),
  'of more clients, with ASTW': (lambda: few(ASTW), 'state=client 5: '),
  'of more clients, without models': (
    lambda: few(SGD_ASTW),
    'state=client 5: is of more than 3 clients',
  ),
  'of another model, before round 1': (
    lambda: (FED_AVG, tiny_rounds.CLIENTS, after(0, model=tiny.functional)),
    r'state=a model of float32 \[171\] for client 0: ',
  ),
  'of float64': (
    lambda: (FED_AVG, tiny_rounds.CLIENTS, after(1, model=float64)),
    'state=z_bar of float64',
  ),
  'without slots': (
    lambda: (ADAM, tiny_rounds.CLIENTS, after(1)),
    'state=memory without .* is of another aggregator',
  ),
  'without a memory of uploads': (
    lambda: (ASTW, tiny_rounds.CLIENTS, after(1)),
    'state=memory without ',
  ),
  'with the memory of another model': (
    lambda: (
      ADAM,
      tiny_rounds.CLIENTS,
      after(1, ADAM)._replace(memory=after(1, ADAM, tiny.functional).memory),
    ),
    r'state=memory m \[171\]: is of another model',
  ),
  'with uploads in an array': (
    lambda: (ASTW, tiny_rounds.CLIENTS, remembering(np.zeros((6, 63)))),
    'state=memory models: is not a ClientStore',
  ),
  'with an array in a store': (
    lambda: (ASTW, tiny_rounds.CLIENTS, remembering(UNKNOWN, 'm')),
    'state=memory m: is not an array',
  ),
  'with uploads of more clients': (
    lambda: (ASTW, tiny_rounds.CLIENTS, remembering(UNKNOWN)),
    'state=client 6: is of more than 6 clients',
  ),
  'without z_bar, for FedSGD': (
    lambda: (safl_tf.build_fed_sgd(), tiny_rounds.CLIENTS, after(0)),
    'state=without z_bar: ',
  ),
  'not of FedMA': (
    lambda: (safl_tf.build_fed_ma(), tiny_rounds.CLIENTS, after(2)),
    'state=given: is not of a run of FedMA',
  ),
}


@pytest.mark.parametrize('make, message', OTHERS.values(), ids=OTHERS)
def test_states_of_other_processes(make, message):
  algorithm, clients, state = make()
  trainer = tiny_rounds.make(algorithm, clients=clients)
  with pytest.raises(errors.InputError, match=f'^{message}'):
    trainer.next(state)


def aggregates(function):
  return {'aggregate': safl_tf.aggregate.Aggregator(function)}


MEAN = safl_tf.aggregate.by_size().apply


def overflowing(memory, updates, z_bar):
  if updates.t == 2:
    return np.full_like(updates.z[0], np.inf), memory
  return MEAN(memory, updates, z_bar)


def test_a_global_model_that_is_not_finite_ends_a_run(tmp_path):
  algorithm = dataclasses.replace(FED_AVG, **aggregates(overflowing))
  with pytest.raises(errors.RunError) as caught:
    safl_tf.train(
      tiny.dense,
      tiny_rounds.CLIENTS,
      algorithm,
      rounds=4,
      output_dir=tmp_path / 'run',
    )
  message = str(caught.value)
  assert message.startswith('round 2: the global model is not finite')
  assert 'that of round 1 was finite' in message
  assert f'another folder than {tmp_path / "run"}' in message
  loaded = run_directory.load(tmp_path / 'run')  # it can be exported
  assert loaded.round_number == 1
  weights = loaded.model.get_weights()
  assert all(np.isfinite(w).all() for w in weights)


def test_a_model_without_finite_outputs_ends_a_run():
  """Its weights are finite, so nothing else would stop it."""
  huge = lambda memory, updates, z_bar: safl_tf.aggregate.Aggregated(
    np.full_like(updates.z[0], 3e38), memory
  )
  algorithm = dataclasses.replace(FED_AVG, **aggregates(huge))
  with pytest.raises(errors.RunError, match=r'^round 1: the test loss of'):
    safl_tf.train(
      tiny.dense,
      tiny_rounds.CLIENTS,
      algorithm,
      rounds=4,
      test_data=tiny.blobs(20),
    )


# Any step overflows, whatever the gradient; 3e38 leaves some models finite.
HUGE = safl_tf.LocalConfig(optimizer=keras.optimizers.SGD(np.inf))


@pytest.mark.parametrize(
  'algorithm',
  [FED_AVG, safl_tf.build_centralized(), safl_tf.build_fed_ma()],
  ids=['fedavg', 'centralized', 'fedma'],
)
def test_clients_that_all_diverge_end_a_run(algorithm, tmp_path):
  options = {'rounds': 3, 'config': HUGE, 'output_dir': tmp_path / 'run'}
  with pytest.raises(errors.RunError, match=r'^round 1: no update of the') as e:
    safl_tf.train(tiny.dense, tiny_rounds.CLIENTS, algorithm, **options)
  assert 'use a smaller learning_rate in a new run: another' in str(e.value)
  # The remedy is possible.
  config = safl_tf.LocalConfig(learning_rate=0.01)
  options |= {'config': config, 'output_dir': tmp_path / 'other'}
  result = safl_tf.train(tiny.dense, tiny_rounds.CLIENTS, algorithm, **options)
  assert result.state.t == 3


def test_malicious_clients_alone_do_not_end_a_run():
  algorithm = dataclasses.replace(
    FED_AVG, select=lambda seed, t, n: np.array([t - 1])
  )
  for seed in range(9):
    attack = safl_tf.Attack('nonfinite', 0.5, seed=seed)
    if attack.choose(6)[0] == 0 and 1 not in attack.choose(6):
      break
  trainer = tiny_rounds.make(algorithm, attack=attack)
  states, _ = tiny_rounds.run(trainer, 2)
  assert states[1].z_bar is None and np.isfinite(states[2].z_bar).all()


@pytest.mark.parametrize(
  'flags, message',
  [
    (
      ['--server_optimizer=sgd', '--server_learning_rate=1e38'],
      'round 3: the global model is not finite',
    ),
    (['--learning_rate=1e38'], 'round 1: no update of the 4 clients is finite'),
  ],
)
def test_safl_train_ends_with_code_1(flags, message, call, tmp_path):
  outcome = call(
    'train', *programs.SMALL, *flags, f'--output_dir={tmp_path}', '--rounds=3'
  )
  assert outcome.code == 1 and outcome.out == ''
  *_, last = outcome.err.splitlines()
  assert last.startswith(f'safl-train: {message}')
  assert '--experiment' in last and 'Traceback' not in outcome.err


START = """
import threading, time
import keras, numpy as np, tensorflow as tf
import safl_tf
from tests import tiny, tiny_rounds
def main():
"""
# what goes wrong in a process of its own, which must end soon
ENDS = {
  'a state of another model': """
    state = tiny_rounds.make(model=tiny.functional).initialize()
    tiny_rounds.make().next(state)
  """,
  'a client model of another size': """
    trainer = tiny_rounds.make()
    state, _ = trainer.next(trainer.initialize())
    bad = state.client_models.updated({4: np.zeros(9, np.float32)})
    trainer.next(state._replace(clients={'z': bad}))
  """,
  'a rule that fails': """
    import dataclasses
    def mix(*args):
      raise OSError('no disk')
    rules = dataclasses.replace(safl_tf.build_fed_avg(), mix=mix)
    tiny_rounds.run(tiny_rounds.make(rules), 1)
  """,
  'a layer whose function is called with another shape': """
    @tf.function(input_signature=[tf.TensorSpec([2, 3])])
    def same(x):
      return x
    class Layer(keras.layers.Layer):
      def call(self, inputs, training=False):
        return same(tf.zeros([3, 3])) if training else inputs
    model = lambda: keras.Sequential(
      [keras.Input((8,)), keras.layers.Dense(3), Layer()])
    trainer = tiny_rounds.make(
      model=model, from_logits=True, executor='threads')
    for _ in range(2):
      try:
        trainer.next(trainer.initialize())
      except Exception as error:
        print('failed', type(error).__name__, flush=True)
    raise error
  """,
  'a layer that fails while it runs': """
    class Layer(keras.layers.Layer):
      def call(self, inputs, training=False):
        tf.debugging.assert_less(tf.reduce_sum(inputs), -1e9)
        return inputs
    class Late(Layer):
      def call(self, inputs, training=False):
        return super().call(inputs) if training else inputs
    model = lambda: keras.Sequential(
      [keras.Input((8,)), keras.layers.Dense(3), Late()])
    trainer = tiny_rounds.make(model=model, from_logits=True)
    tiny_rounds.run(trainer, 1)
  """,
}


def script(body):
  lines = textwrap.indent(textwrap.dedent(body), '  ')
  return f'{START}{lines}\nmain()\n'


@pytest.mark.parametrize(
  'name',
  [
    pytest.param(name, marks=[pytest.mark.attack] if i else [])
    for i, name in enumerate(ENDS)
  ],
)
def test_a_failure_leaves_no_thread_waiting(name):
  process = programs.start('-c', script(ENDS[name]))
  try:
    _, err = process.communicate(timeout=90)
  finally:
    process.kill()
  assert process.returncode == 1, err[-2000:]


WORKING = """
  trainer = tiny_rounds.make(
    clients=tiny.clients([200] * 400), executor='{}')
  state = trainer.initialize()
  print('start', flush=True)
  while True:
    state, _ = trainer.next(state)
"""


@pytest.mark.attack
@pytest.mark.parametrize('executor', ['threads', 'vectorized', 'serial'])
def test_an_interrupt_ends_the_process(executor):
  process = programs.start('-c', script(WORKING.format(executor)))
  try:
    assert process.stdout.readline() == 'start\n'
    time.sleep(3)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
  except subprocess.TimeoutExpired:
    pytest.fail('does not end')
  finally:
    process.kill()
  assert 'KeyboardInterrupt' in err
  assert process.returncode in (1, -signal.SIGINT)
