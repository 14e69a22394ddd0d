"""The programs on data that are not single classes."""

import json

import pytest

from safl_tf.reporting import plots
from safl_tf.training import metrics_log
from tests.binaries import programs

SMALL = (
  '--rounds=1',
  '--local_epochs=1',
  '--algorithm=fedavg',
  '--clients_per_round=2',
  '--jit_compile=false',
)


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch):
  monkeypatch.setattr(plots, 'write_all', lambda *args: None)


def scores(outcome):
  """What safl-evaluate printed, by name."""
  assert outcome.code == 0, outcome.err
  return dict(line.split(maxsplit=1) for line in outcome.out.splitlines())


@pytest.mark.parametrize(
  'dataset, loss, metrics',
  [
    ('diabetes', 'mse', ['mae']),
    ('synthetic_multi_label', 'binary_crossentropy', ['AUC', 'mse']),
    pytest.param('python_docs', 'categorical', [], marks=pytest.mark.slow),
  ],
)
def test_bundled_data(dataset, loss, metrics, call, tmp_path):
  outcome = call(
    'train',
    *SMALL,
    f'--dataset={dataset}',
    f'--output_dir={tmp_path}',
    '--export=keras',
    *([f'--metrics={",".join(metrics)}'] if metrics else []),
  )
  assert outcome.code == 0, outcome.err
  run = tmp_path / f'fedavg_{dataset}'
  described = json.loads((run / 'model.json').read_text())
  assert described['task']['loss'] == loss
  [row] = metrics_log.read_csv(run / 'metrics.csv')
  for part in ('', 'export/model.keras'):
    given = [f'--dataset={dataset}', f'--loss={loss}'] if part else []
    found = scores(call('evaluate', f'--model={run / part}', *given))
    assert float(found['loss']) == pytest.approx(row['test_loss'], rel=1e-4)
    if not part:
      for name in metrics:
        expected = row[f'test_{name}']
        assert float(found[name]) == pytest.approx(expected, rel=1e-4)
  assert (row['test_accuracy'] is None) == (dataset == 'diabetes')


def test_clients_are_tested(call, tmp_path):
  command = (
    *SMALL,
    '--dataset=diabetes',
    '--client_test_fraction=0.3',
    '--personalize_steps=2',
    '--export=none',
    f'--output_dir={tmp_path}',
  )
  outcome = call('train', *command)
  assert outcome.code == 0, outcome.err
  run = tmp_path / 'fedavg_diabetes'
  [row] = metrics_log.read_csv(run / 'metrics.csv')
  table = metrics_log.read_clients(run)
  for model in ('global', 'own', 'personalized'):
    mean = row[f'client_{model}_loss_mean']
    assert mean == pytest.approx(table[f'{model}_loss'].mean())
  before = (run / 'clients.csv').read_bytes()
  assert call('train', *command).code == 0  # is complete
  assert (run / 'clients.csv').read_bytes() == before


REFUSED = {
  'class weights': (
    ['--class_weight=0:1,0:2'],
    '--class_weight=0:1,0:2: must name each class once',
  ),
  'no weights': (
    ['--class_weight=a'],
    '--class_weight=a: must be CLASS:WEIGHT, separated by commas',
  ),
  'a class that there is not': (
    ['--class_weight=10:2'],
    '--class_weight=10: must be ',
  ),
  'a loss': (['--loss=mean_squared_eror'], '--loss=mean_squared_eror: did you'),
  'a metric': (['--metrics=AUCC'], '--metrics=AUCC: '),
  'no tests': (
    ['--personalize_steps=2'],
    '--personalize_steps=2: has no effect with --client_test_fraction=None',
  ),
  'a share': (
    ['--client_test_fraction=0.95'],
    '--client_test_fraction=0.95: must be a number in',
  ),
  'score': (['--score=mse'], '--score=mse: has no effect with --algorithm'),
}


@pytest.mark.parametrize('arguments, message', REFUSED.values(), ids=REFUSED)
def test_refused(arguments, message, call, tmp_path):
  outcome = call('train', *SMALL, *arguments, f'--output_dir={tmp_path}/runs')
  programs.check_refused(outcome, 'train', message)
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize('program', ['train', 'evaluate'])
def test_a_loss_of_its_own_needs_a_name(program, call, tmp_path, dense):
  import keras

  model = keras.models.load_model(dense)
  model.compile(loss=lambda y, outputs: outputs[:, 0])
  path = tmp_path / 'own.keras'
  model.save(path)
  arguments = [f'--model={path}']
  if program == 'train':
    arguments += [*SMALL, '--export=none', f'--output_dir={tmp_path}/runs']
  outcome = call(program, *arguments)
  assert outcome.code == 2 and 'give --loss' in outcome.err, outcome.err
  outcome = call(program, *arguments, '--loss=categorical')
  assert outcome.code == 0, outcome.err
