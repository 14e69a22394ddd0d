"""safl-train: see `binaries.training_flags`."""

import pathlib
import time
from typing import Any

from binaries import common, training_flags


def main() -> None:
  """Flags -> data, model, algorithm -> one run -> pictures and export."""
  values = training_flags.values()
  common.start_tensorflow()
  from binaries import building
  from safl_tf import export, plots, records, run_folder, simulation

  start = time.perf_counter()
  path = pathlib.Path(values['output_dir']) / values['experiment']
  folder = run_folder.RunFolder(path, values, values['keep_checkpoints'])
  folder.check()
  trainer, dataset = building.process_and_data(values)
  schedule = simulation.Schedule(
    values['rounds'],
    values['eval_every'],
    values['checkpoint_every'],
    values['stop_at_accuracy'],
  )
  result = simulation.run(
    trainer,
    schedule,
    values['seed'],
    (dataset.x_test, dataset.y_test),
    folder,
  )
  run_folder.write_model(path, trainer.model, list(dataset.class_names))
  if values['device_table']:
    table = simulation.device_table(trainer, result.state)
    records.write_devices(path, table)
  title = f'{values["algorithm"]}, {values["model"]} on {dataset.name}'
  plots.write_all(
    path,
    result.history,
    trainer.clients.label_counts(),
    dataset.class_names,
    title,
  )
  with common.only_errors():
    export.export(
      result.model,
      path / 'export',
      trainer.model.input_spec,
      trainer.model.from_logits,
      values['export'],
    )
  _summarise(result.history, path, time.perf_counter() - start)


def _summarise(
  history: list[dict[str, Any]], path: pathlib.Path, seconds: float
) -> None:
  scored = [row for row in history if row['test_accuracy'] is not None]
  last = history[-1]
  if scored:
    best = max(scored, key=lambda row: row['test_accuracy'])
    print(f'best accuracy  {best["test_accuracy"]:.1%} (round {best["round"]})')
    print(f'last accuracy  {scored[-1]["test_accuracy"]:.1%}')
  uploads = sum(row['uploaded'] for row in history)
  selected = sum(row['selected'] for row in history)
  print(f'uploads        {uploads} of {selected}')
  up, down = last['total_bytes_up'] / 1e6, last['total_bytes_down'] / 1e6
  print(f'moved          {up:.1f} MB up, {down:.1f} MB down')
  rounds = sum(row['seconds'] for row in history)
  print(f'time           {seconds:.1f} s ({rounds:.1f} s in rounds)')
  print(f'files          {path}')


def cli() -> None:
  """The console script."""
  common.run('safl-train', training_flags, main)


if __name__ == '__main__':
  cli()
