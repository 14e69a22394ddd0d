"""Sweeps from Python, and what TensorBoard's HParams page reads of them."""

import types

import pytest

import safl_tf
from safl_tf.reporting import charts, hparams_plugin, metrics, sweep
from safl_tf.util import errors
from tests import tiny
from tests.reporting import hparams_messages, test_tables

STRING, BOOL, NUMBER = 1, 2, 3


def fake(a, b='x', *, seed, output_dir):
  """In place of a training."""
  run = test_tables.make_run('', seed, [a / 10, (a + seed) / 10])
  algorithm = types.SimpleNamespace(name='safl', settings={'epsilon': 0.3})
  clients = types.SimpleNamespace(num_clients=4, num_classes=10)
  process = types.SimpleNamespace(algorithm=algorithm, clients=clients)
  return types.SimpleNamespace(history=run.history, process=process)


@pytest.fixture
def no_pictures(monkeypatch):
  """Pictures are empty files."""
  for name in ('chart', 'heat_map'):
    monkeypatch.setattr(
      charts, name, lambda chart, paths: [path.touch() for path in paths]
    )


def test_events(tmp_path):
  long = 'x' * 300
  setting = {'epsilon': 0.1, 'n': 3, 'nu': None, 'on': True, 'name': long}
  hparams_plugin.write_session(tmp_path, setting)
  path = tmp_path / hparams_plugin.FILE
  expected = {'epsilon': 0.1, 'n': 3.0, 'on': True, 'name': long}
  assert hparams_messages.parameters(path) == expected
  end = hparams_messages.read(path)['_hparams_/session_end_info']
  assert end.session_end_info.status == 1
  mixed = {**setting, 'nu': 0.5, 'on': 'auto'}
  hparams_plugin.write_experiment(tmp_path, [setting, mixed], metrics.LOSS)
  infos, tags = hparams_messages.columns(path)
  assert infos == {
    'epsilon': NUMBER,
    'n': NUMBER,
    'nu': NUMBER,
    'on': STRING,
    'name': STRING,
  }
  assert tags == ['test/loss']


def test_names_of_runs():
  assert sweep.run_name({'a': 0.1, 'b': 10.0}, 2) == 'a_0.1_b_10_seed2'
  assert sweep.run_name({'a': None, 'b': True}, 0) == 'b_true_seed0'
  assert sweep.run_name({'a': None}, 0) == 'all_seed0'
  names = {sweep.run_name({'a': a}, 0) for a in ('x/y', 'x:y', 'x-y')}
  assert len(names) == 3 and not any('/' in name for name in names)
  longs = {sweep.run_name({'a': 'x' * 300 + end}, 0) for end in 'ab'}
  assert len(longs) == 2 and max(map(len, longs)) < 150


def test_frame_and_files(tmp_path, no_pictures):
  grid = {'a': [1, 4], 'b': ['x', 'y']}
  frame = safl_tf.sweep(fake, grid, (0, 3), tmp_path / 'new', target=0.5)
  assert len(frame) == 4 * 2 * 2
  assert list(frame)[:4] == ['a', 'b', 'seed', 'round']
  last = frame[(frame.a == 4) & (frame.seed == 3) & (frame['round'] == 2)]
  assert last.test_accuracy.tolist() == [0.7, 0.7]
  names = {path.name for path in (tmp_path / 'new').iterdir()}
  assert {'sweep.html', 'sweep.csv', 'sweep.tex', 'runs.csv'} < names
  page = (tmp_path / 'new' / 'sweep.html').read_text()
  assert 'class="heat"' in page


@pytest.mark.slow
def test_runs_resume(tmp_path, no_pictures):
  clients = tiny.clients()
  test_data = tiny.blobs(30, seed=1)

  def train(epsilon, seed, output_dir):
    return safl_tf.train(
      tiny.dense,
      clients,
      safl_tf.build_safl(epsilon=epsilon),
      test_data=test_data,
      rounds=2,
      seed=seed,
      jit_compile='false',
      output_dir=output_dir,
    )

  first = safl_tf.sweep(train, {'epsilon': [0.1]}, output_dir=tmp_path / 's')
  logdir = tmp_path / 's' / 'epsilon_0.1_seed0' / 'logdir'
  before = (logdir.parent / 'metrics.csv').read_bytes()
  grid = {'epsilon': [0.5, 0.1]}
  frame = safl_tf.sweep(train, grid, output_dir=tmp_path / 's')
  assert (logdir.parent / 'metrics.csv').read_bytes() == before
  same = frame[frame.epsilon == 0.1].reset_index(drop=True)
  assert same.equals(first)  # with the seconds: nothing was trained again
  session = hparams_messages.parameters(logdir / hparams_plugin.FILE)
  assert session == {'epsilon': 0.1, 'seed': 0.0}
  infos, tags = hparams_messages.columns(tmp_path / 's' / hparams_plugin.FILE)
  assert infos == {'epsilon': NUMBER, 'seed': NUMBER}
  assert tags == ['test/accuracy']


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    ({'grid': {'c': [1]}}, r'^grid=c: the function takes other arguments'),
    ({'grid': {'a': 'xy'}}, r'^grid: a=xy: must be a list of numbers'),
    ({'grid': {'a': [fake]}}, r'^grid: a=.*: must be a list of numbers'),
    ({'grid': {'a': [1, 1]}}, r'^grid: a=.*: must have values, each of them'),
    ({'grid': {'a': []}}, r'^grid: a=.*: must have values'),
    ({'grid': {'seed': [1]}}, r'^grid=seed: is what seeds are for'),
    ({'grid': {'rounds': [1]}}, r'^grid=rounds: a run also has'),
    ({'grid': [1]}, r'^grid=list: must be parameters and their values'),
    ({'seeds': [0, 0]}, r'^seeds=.*: must have values, each of them once'),
    ({'seeds': [-1]}, r'^seeds=-1: must be a whole number'),
    ({'target': 2.0}, r'^target=2.0: must be a number in'),
    ({'function': 3}, r'^function=3: must be a function'),
  ],
)
def test_refused(tmp_path, arguments, message):
  arguments = {'function': fake, 'grid': {'a': [1]}, **arguments}
  with pytest.raises(errors.InputError, match=message):
    safl_tf.sweep(**arguments, output_dir=tmp_path / 'new')
  assert not list(tmp_path.iterdir())


def test_a_function_that_returns_something_else(tmp_path):
  with pytest.raises(errors.InputError, match=r'^function=NoneType: must ret'):
    safl_tf.sweep(lambda seed, output_dir: None, {}, output_dir=tmp_path)


def test_occasionally(monkeypatch):
  """Calls take at most a tenth of the time."""
  clock, calls = [100.0], []
  monkeypatch.setattr(sweep.time, 'monotonic', lambda: clock[0])

  def slow():
    calls.append(clock[0])
    clock[0] += 2

  call = sweep.occasionally(slow)
  for _ in range(60):
    call()
    clock[0] += 1
  assert calls == [100, 120, 140, 160]
