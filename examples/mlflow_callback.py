"""Logs a run to MLflow's local files with a callback.

pip install mlflow
python -m examples.mlflow_callback
mlflow ui --backend-store-uri sqlite:///mlflow.db
"""

import pathlib
from typing import Any

import safl_tf
from examples import own_model


class MlflowCallback(safl_tf.Callback):
  """Logs settings, the metrics of each round, and the files of a run.

  Args:
    store: where MLflow keeps its data; by default a local file.
    experiment: the name of MLflow's experiment.
  """

  def __init__(
    self, store: str = 'sqlite:///mlflow.db', experiment: str = 'safl_tf'
  ):
    import mlflow

    self._mlflow = mlflow
    mlflow.set_tracking_uri(store)
    mlflow.set_experiment(experiment)

  def on_train_begin(self, run: Any) -> None:
    """Starts a run of MLflow; a resumed run logs its earlier rounds again."""
    self._path = run.path
    self._mlflow.end_run('FAILED')  # of an interrupted training, if any
    self._mlflow.start_run(run_name=run.path and run.path.name)
    self._mlflow.log_params(run.settings)
    for row in run.history:
      self._log(row)

  def on_round_end(self, t: int, row: dict[str, Any], state: Any) -> None:
    """Logs the metrics of a round."""
    self._log(row)

  def on_train_end(self, result: safl_tf.Result) -> None:
    """Logs the plots and the exported model, and ends MLflow's run."""
    for name in ('plots', 'export'):
      if self._path is not None and (self._path / name).is_dir():
        self._mlflow.log_artifacts(str(self._path / name), name)
    self._mlflow.end_run()

  def _log(self, row: dict[str, Any]) -> None:
    metrics = {name: value for name, value in row.items() if value is not None}
    self._mlflow.log_metrics(metrics, step=metrics.pop('round'))


def main(folder: str = 'runs/mlflow', rounds: int = 5) -> None:
  """Trains a small model; `mlflow ui` shows the curves."""
  x, y = own_model.make_data(1000, seed=1)
  clients = safl_tf.ClientData.from_arrays(
    x, y, partition=safl_tf.partition.iid(5)
  )
  result = safl_tf.train(
    own_model.make_model,
    clients,
    test_data=own_model.make_data(300, seed=2),
    rounds=rounds,
    output_dir=pathlib.Path(folder),
    export='keras',
    callbacks=[MlflowCallback()],
  )
  print(result)


if __name__ == '__main__':
  main()
