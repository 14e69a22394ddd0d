import json
import shutil

import pytest

from safl_tf.training import metrics_log


def scores(outcome):
  """What the program printed: {'loss': ..., ...} and the rows of the table."""
  assert outcome.code == 0, outcome.err
  head, table = outcome.out.split('\n\n')
  lines = dict(line.split(maxsplit=1) for line in head.splitlines())
  return lines, [line.split() for line in table.splitlines()]


@pytest.mark.parametrize(
  'part',
  ['', 'export/saved_model', 'export/saved_model/1', 'export/model.keras'],
)
def test_scores(exported, call, part):
  last = metrics_log.read_csv(exported / 'metrics.csv')[-1]
  outcome = call('evaluate', f'--model={exported / part}')
  lines, table = scores(outcome)
  assert outcome.err == ''
  assert lines['model'] == str(exported / part)
  assert lines['data'] == 'mnist_sample, 1000 test examples'
  assert float(lines['loss']) == pytest.approx(last['test_loss'], abs=1e-5)
  assert lines['top-1'] == f'{last["test_accuracy"]:.2%}'
  assert lines['top-5'] == f'{last["test_top5_accuracy"]:.2%}'
  header, *rows = table
  assert header == ['class', 'examples', 'accuracy']
  assert [row[:2] for row in rows] == [[str(c), '100'] for c in range(10)]
  mean = sum(float(row[2].rstrip('%')) for row in rows) / 10
  assert mean / 100 == pytest.approx(last['test_accuracy'], abs=1e-6)


def test_takes_the_settings_of_the_run(finished, call, tmp_path):
  """The data set and the loss are the run's unless they are given."""
  run = tmp_path / 'run'
  shutil.copytree(finished, run)
  hparams = json.loads((run / 'hparams.json').read_text())
  hparams['flags'] |= {'dataset': 'cifar10', 'data_dir': 'no'}
  (run / 'hparams.json').write_text(json.dumps(hparams))
  described = json.loads((run / 'model.json').read_text())
  described['task']['loss'] = 'paper'
  (run / 'model.json').write_text(json.dumps(described))
  outcome = call('evaluate', f'--model={run}')
  assert outcome.code == 2
  assert outcome.err == (
    'safl-evaluate: --data_dir=no: must be an existing folder\n'
  )
  given = ('--dataset=mnist_sample',)
  paper, _ = scores(call('evaluate', f'--model={run}', *given))
  plain, _ = scores(
    call('evaluate', f'--model={run}', *given, '--loss=categorical')
  )
  assert paper['top-1'] == plain['top-1']
  assert float(paper['loss']) > float(plain['loss']) + 0.01


def test_own_model_with_more_outputs_than_classes(call, tmp_path):
  import keras

  model = keras.Sequential(
    [keras.Input((28, 28, 1)), keras.layers.Flatten(), keras.layers.Dense(12)]
  )
  model.save(tmp_path / 'wide.keras')
  _, table = scores(call('evaluate', f'--model={tmp_path}/wide.keras'))
  assert [row[0] for row in table] == ['class', *'0123456789']
