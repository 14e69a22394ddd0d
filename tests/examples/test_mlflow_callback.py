"""What the example logs, with MLflow or with a module of the same functions."""

import importlib.util
import sys
import types

import pytest

import safl_tf
from examples import mlflow_callback
from tests import tiny

HAS_MLFLOW = importlib.util.find_spec('mlflow') is not None


class FakeMlflow(types.ModuleType):
  """Records calls; as MLflow, it has one active run at a time."""

  def __init__(self):
    super().__init__('mlflow')
    self.runs = []
    self.active = None

  def set_tracking_uri(self, uri):
    self.uri = uri

  def set_experiment(self, name):
    self.experiment = name

  def start_run(self, run_name=None):
    assert self.active is None
    self.active = types.SimpleNamespace(
      name=run_name, params={}, metrics={}, artifacts={}, status='RUNNING'
    )
    self.runs.append(self.active)

  def end_run(self, status='FINISHED'):
    if self.active is not None:
      self.active.status, self.active = status, None

  def log_params(self, params):
    assert not params.keys() & self.active.params.keys()
    self.active.params |= params

  def log_metrics(self, metrics, step=None):
    for name, value in metrics.items():
      assert isinstance(value, float | int)
      self.active.metrics.setdefault(name, {})[step] = value

  def log_artifacts(self, local_dir, artifact_path=None):
    self.active.artifacts[artifact_path] = local_dir


def train(folder, rounds, **options):
  return safl_tf.train(
    tiny.dense,
    tiny.clients(),
    test_data=tiny.blobs(30),
    rounds=rounds,
    config=safl_tf.LocalConfig(local_epochs=1, batch_size=8),
    jit_compile='false',
    output_dir=folder,
    export='none',
    progress=False,
    **options,
  )


def test_what_is_logged(tmp_path, monkeypatch):
  mlflow = FakeMlflow()
  monkeypatch.setitem(sys.modules, 'mlflow', mlflow)
  callback = mlflow_callback.MlflowCallback()
  assert mlflow.experiment == 'safl_tf'
  train(tmp_path / 'mine', 1, callbacks=[callback])

  def interrupt(row):
    raise KeyboardInterrupt

  with pytest.raises(KeyboardInterrupt):
    train(tmp_path / 'mine', 2, callbacks=[callback, interrupt])
  result = train(tmp_path / 'mine', 3, callbacks=[callback])
  statuses = [run.status for run in mlflow.runs]
  assert statuses == ['FINISHED', 'FAILED', 'FINISHED']
  run = mlflow.runs[-1]
  assert run.name == 'mine'
  assert run.params == safl_tf.load_run(tmp_path / 'mine').flags
  losses = {row['round']: row['test_loss'] for row in result.history}
  assert run.metrics['test_loss'] == losses
  assert 'q_p50' not in run.metrics and 'round' not in run.metrics
  assert run.artifacts == {'plots': str(tmp_path / 'mine' / 'plots')}


@pytest.mark.skipif(not HAS_MLFLOW, reason='needs mlflow')
def test_mlflow_has_it(tmp_path, monkeypatch):
  import mlflow

  monkeypatch.chdir(tmp_path)
  mlflow_callback.main(rounds=2)
  (run,) = mlflow.search_runs(
    experiment_names=['safl_tf'], output_format='list'
  )
  history = safl_tf.load_run('runs/mlflow').history
  assert run.info.status == 'FINISHED'
  assert run.data.params['temperature'] == '80.0'
  assert run.data.metrics['test_loss'] == history.test_loss.iloc[-1]
  client = mlflow.MlflowClient()
  logged = client.get_metric_history(run.info.run_id, 'train_loss')
  assert [m.value for m in logged] == history.train_loss.tolist()
  names = [file.path for file in client.list_artifacts(run.info.run_id)]
  assert sorted(names) == ['export', 'plots']
