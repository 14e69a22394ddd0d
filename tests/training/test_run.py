"""Runs that are loaded afterwards."""

import json
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest

import safl_tf
from safl_tf.data import client_data
from safl_tf.training import export, metrics_log
from safl_tf.util import errors
from tests import tiny

ROOT = pathlib.Path(safl_tf.__file__).parent.parent
NAMES = ['ann', 'NA', '007', '7', 'a,"b"']
TEST = tiny.blobs(30)
HISTORY = lambda run: run.history


def clients():
  x, y = tiny.blobs(71)
  ends = np.cumsum([20, 13, 31, 6])
  parts = np.split(np.arange(71), ends)
  return client_data.ClientData.from_arrays(x, y, parts, NAMES, 3)


def train(folder, algorithm=None, rounds=3, **options):
  options = {'export': 'none', **options}
  return safl_tf.train(
    tiny.dense,
    clients(),
    algorithm or safl_tf.build_safl(clients_per_round=2),
    rounds=rounds,
    config=safl_tf.LocalConfig(local_epochs=1, batch_size=8),
    jit_compile='false',
    output_dir=folder,
    progress=False,
    **options,
  )


@pytest.fixture(scope='module')
def runs(tmp_path_factory):
  """Two runs, a result, and things that are no runs."""
  folder = tmp_path_factory.mktemp('runs')
  options = {'test_data': TEST, 'checkpoint_every': 1, 'eval_every': 2}
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(export, '_check', lambda *args: None)
    result = train(
      folder / 'safl', client_table=True, export='keras', **options
    )
  train(folder / 'avg', safl_tf.build_fed_avg(), rounds=1, seed=4)
  (folder / 'notes.txt').write_text('mine')
  (folder / 'others').mkdir()
  return folder, result


@pytest.fixture
def copied(runs, tmp_path):
  return pathlib.Path(shutil.copytree(runs[0] / 'safl', tmp_path / 'safl'))


def test_files_are_those_of_the_program(runs):
  names = {path.name for path in (runs[0] / 'safl').iterdir()}
  assert names == {
    '.safl_tf',
    'checkpoints',
    'client_sizes.csv',
    'clients.csv',
    'export',
    'hparams.json',
    'logdir',
    'metrics.csv',
    'model.json',
    'plots',
  }
  plots = {path.stem for path in (runs[0] / 'safl' / 'plots').iterdir()}
  assert plots == {'accuracy', 'annealing', 'loss', 'partition'}
  assert (runs[0] / 'safl' / 'export' / 'model.keras').is_file()
  assert not (runs[0] / 'avg' / 'export').exists()
  assert not (runs[0] / 'avg' / 'clients.csv').exists()


def test_history(runs):
  run, result = safl_tf.load_run(runs[0] / 'safl'), runs[1]
  assert run.history.index.tolist() == [1, 2, 3]
  assert run.history.index.name == 'round'
  assert run.history.test_accuracy.isna().tolist() == [True, False, False]
  assert run.history.equals(result.frame)
  for column in ('test_loss', 'p', 'total_bytes_up'):
    known = [row[column] for row in result.history if row[column] is not None]
    assert run.history[column].dropna().tolist() == known
  assert all(dtype.kind in 'if' for dtype in run.history.dtypes)


def test_flags_of_python_runs(runs):
  flags = safl_tf.load_run(runs[0] / 'safl').flags
  expected = {'algorithm': 'safl', 'seed': 0, 'rounds': 3, 'eval_every': 2}
  expected |= {'epsilon': 0.3, 'temperature': 80.0, 'clients_per_round': 2}
  expected |= {'batch_size': 8, 'optimizer': 'sgd', 'num_clients': 5}
  assert {name: flags[name] for name in expected} == expected


def test_flags_of_program_runs(copied):
  path = copied / 'hparams.json'
  hparams = json.loads(path.read_text()) | {'flags': {'algorithm': 'x'}}
  path.write_text(json.dumps(hparams))
  assert safl_tf.load_run(copied).flags == {'algorithm': 'x'}


def test_settings_follow_a_resumed_run(copied):
  train(copied, rounds=4, test_data=TEST, eval_every=2)
  run = safl_tf.load_run(copied)
  assert run.flags['rounds'] == 4 and len(run.history) == 4


def test_models(runs):
  run, result = safl_tf.load_run(runs[0] / 'safl'), runs[1]
  x, _ = TEST
  wanted = result.model(x).numpy()
  assert run.model()(x).numpy().tobytes() == wanted.tobytes()
  assert run.model(round=3)(x).numpy().tobytes() == wanted.tobytes()
  assert run.model(round=2)(x).numpy().tobytes() != wanted.tobytes()


def test_client_models(runs):
  run, result = safl_tf.load_run(runs[0] / 'safl'), runs[1]
  store, model = result.state.client_models, result.process.model
  trained = sorted(store.versions)
  assert 2 <= len(trained) < 5  # with two clients in each of three rounds
  for k in trained:
    own = run.client_model(NAMES[k])
    assert model.read(own).tobytes() == store[k].tobytes()
  (never, *_) = set(range(5)) - set(trained)
  with pytest.raises(errors.InputError, match='has no model of that client'):
    run.client_model(NAMES[never])


def test_client_ids_may_be_numbers(runs, copied):
  text = 'client,examples\n' + ''.join(f'{k},1\n' for k in range(5))
  (copied / 'clients.csv').write_text(text)
  run, result = safl_tf.load_run(copied), runs[1]
  k = min(result.state.client_models.versions)
  own = result.process.model.read(run.client_model(k))
  assert own.tobytes() == result.state.client_models[k].tobytes()


def test_clients(runs):
  table = safl_tf.load_run(runs[0] / 'safl').clients
  assert table.client.tolist() == NAMES
  assert table.examples.tolist() == [20, 13, 31, 6, 1]
  assert 'global_train_accuracy' in table
  table = safl_tf.load_run(runs[0] / 'avg').clients
  assert table.client.tolist() == NAMES
  assert list(table) == ['client', 'examples']


def test_texts(runs):
  run, result = safl_tf.load_run(runs[0] / 'safl'), runs[1]
  loss = f'test_loss={result.history[-1]["test_loss"]:.4g}'
  assert repr(result).startswith('Result(safl, rounds=3, test_accuracy=')
  assert repr(run).startswith(f'Run({runs[0] / "safl"}, algorithm=safl, seed=0')
  for value in (run, result):
    assert loss in repr(value) and len(repr(value)) < 250
    assert loss.split('=')[1] in value._repr_html_()


def test_plots(runs):
  figure = safl_tf.load_run(runs[0] / 'safl').plot()
  labels = [axes.get_ylabel() for axes in figure.axes]
  assert labels == ['test accuracy (%)', 'loss']
  assert figure._repr_png_().startswith(b'\x89PNG')
  figure = safl_tf.load_run(runs[0] / 'avg').plot()  # without test data
  assert [axes.get_ylabel() for axes in figure.axes] == ['loss']
  assert len(runs[1].plot().axes) == 2


def test_other_metrics_are_loaded_and_drawn(copied):
  lines = (copied / 'metrics.csv').read_text().splitlines()
  ends = ['test_mae', '', '0.5', '0.25']
  text = ''.join(f'{a},{b}\n' for a, b in zip(lines, ends, strict=True))
  (copied / 'metrics.csv').write_text(text)
  run = safl_tf.load_run(copied)
  assert run.history.test_mae.tolist()[1:] == [0.5, 0.25]
  assert 'test_mae=0.25' in repr(run)
  labels = [axes.get_ylabel() for axes in run.plot().axes]
  assert labels == ['test accuracy (%)', 'loss', 'test mae']


def test_loading_does_not_import_tensorflow(runs):
  script = (
    'import sys, safl_tf; '
    f'run = safl_tf.load_run({str(runs[0] / "safl")!r}); '
    'run.history, run.flags, run.clients, run.plot(), repr(run); '
    f'safl_tf.load_runs({str(runs[0] / "*")!r}); '
    'print([m for m in ("tensorflow", "keras") if m in sys.modules])'
  )
  done = subprocess.run(
    [sys.executable, '-c', script],
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=True,
  )
  assert done.stdout == '[]\n'


def test_load_runs(runs):
  table = safl_tf.load_runs(f'{runs[0]}/*')
  assert table.run.tolist() == ['avg', *['safl'] * 3]
  assert table.algorithm.tolist() == ['fedavg', *['safl'] * 3]
  assert table.seed.tolist() == [4, 0, 0, 0]
  assert table['round'].tolist() == [1, 1, 2, 3]
  before = list(table)[: list(table).index('round')]
  assert before[:3] == ['run', 'algorithm', 'seed']
  differing = {'rounds', 'clients_per_round', 'temperature', 'epsilon'}
  differing |= {'granularity', 'checkpoint_every', 'eval_every', 'fraction'}
  assert differing - {'fraction', 'checkpoint_every'} <= set(before[3:])
  assert 'batch_size' not in table
  assert table.temperature.isna().tolist() == [True, False, False, False]
  assert table.test_accuracy.notna().tolist() == [False, False, True, True]


@pytest.mark.parametrize('form', [str, pathlib.Path, lambda p: [p, str(p)]])
def test_load_runs_takes_paths(runs, form):
  table = safl_tf.load_runs(form(runs[0] / 'safl'))
  assert table.run.tolist() == ['safl'] * 3
  assert list(table)[3] == 'round'  # no flag differs


def test_flags_with_the_names_of_metrics(copied, tmp_path):
  other = pathlib.Path(shutil.copytree(copied, tmp_path / 'other'))
  for path, flags in (copied, {'p': 1}), (other, {'p': [2], 'seed': 3}):
    hparams = json.loads((path / 'hparams.json').read_text())
    hparams['flags'] = flags
    (path / 'hparams.json').write_text(json.dumps(hparams))
  table = safl_tf.load_runs([copied, other])
  assert table.flag_p.tolist() == [1] * 3 + ['[2]'] * 3
  assert table.p.iloc[0] == pytest.approx(np.exp(-1 / 80))
  assert table.seed.dropna().tolist() == [3] * 3


def damage(name, text):
  return lambda path: (path / name).write_text(text)


@pytest.mark.parametrize(
  'change, use, message',
  [
    (lambda p: (p / 'hparams.json').unlink(), repr, 'it has no hparams.json'),
    (damage('hparams.json', '{'), repr, 'hparams.json cannot be parsed'),
    (lambda p: (p / 'metrics.csv').unlink(), HISTORY, 'has no metrics.csv'),
    (
      damage('metrics.csv', 'round\n7\n'),
      HISTORY,
      'metrics.csv=line 2: must be',
    ),
    (damage('clients.csv', ''), lambda r: r.clients, 'cannot be read'),
    (
      damage('clients.csv', 'a,b\n'),
      lambda r: r.client_model('7'),
      'has no client_sizes.csv',
    ),
    (damage('model.json', '{}'), lambda r: r.model(), 'has no valid field'),
    (
      lambda p: shutil.rmtree(p / 'checkpoints'),
      lambda r: r.model(),
      'has no global model yet',
    ),
    (lambda p: None, lambda r: r.model(round=1), 'there are 2, 3'),
    (lambda p: None, lambda r: r.client_model(8), 'which are ann, NA, 007'),
    (
      lambda p: (p / 'checkpoints' / 'round_000003.npz').write_bytes(b'x'),
      lambda r: r.model(round=3),
      'round_000003.npz has 1 bytes',
    ),
  ],
)
def test_errors_are_one_line_with_the_path(copied, change, use, message):
  change(copied)
  with pytest.raises(errors.InputError) as caught:
    use(safl_tf.load_run(copied))
  text = str(caught.value)
  assert message in text and str(copied) in text and '\n' not in text


def test_texts_of_damaged_runs(copied):
  (copied / 'metrics.csv').unlink()
  run = safl_tf.load_run(copied)
  assert repr(run).endswith(
    'algorithm=safl, seed=0, metrics=has no metrics.csv)'
  )


def test_errors_of_load_runs(runs, tmp_path):
  for paths, text in {
    f'{tmp_path}/*': f'paths={tmp_path}/*: matches no folder of a run',
    f'{runs[0]}/others': f'path={runs[0]}/others: is not the folder of a run',
    '': 'path=: is not the folder of a run',
  }.items():
    with pytest.raises(errors.InputError) as caught:
      safl_tf.load_runs(paths)
    assert str(caught.value).startswith(text)
  for paths in (3, None, [3], []):
    with pytest.raises(errors.InputError, match=r'^paths='):
      safl_tf.load_runs(paths)


def test_a_run_without_rounds(copied):
  header = (copied / 'metrics.csv').read_text().splitlines()[0]
  (copied / 'metrics.csv').write_text(f'{header}\n')
  run = safl_tf.load_run(copied)
  assert len(run.history) == 0
  assert set(run.history) == set(metrics_log.COLUMNS) - {'round'}
  assert 'rounds=0' in repr(run)
  assert len(safl_tf.load_runs(copied)) == 0


def test_an_export_that_fails_leaves_the_result(tmp_path, monkeypatch, caplog):
  def fail(*args, **kwargs):
    raise export.ExportError('predictions differ')

  monkeypatch.setattr(export, 'export', fail)
  result = train(tmp_path / 'run', rounds=1, export='both')
  assert result.failure.startswith('export=both: predictions differ; all other')
  assert result.failure in caplog.text
  assert len(safl_tf.load_run(tmp_path / 'run').history) == 1


@pytest.mark.parametrize(
  'argument, value', [('export', 'keras'), ('client_table', True)]
)
def test_files_need_a_folder(argument, value):
  with pytest.raises(errors.InputError, match=f'^{argument}=.* output_dir$'):
    train(None, **{argument: value})
