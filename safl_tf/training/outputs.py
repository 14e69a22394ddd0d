"""What a run leaves besides its log and checkpoints: plots, tables, exports."""

import dataclasses
from collections.abc import Mapping, Sequence
from concurrent import futures
from typing import Any

from safl_tf.reporting import plots
from safl_tf.training import (
  client_evaluation,
  export,
  metrics_log,
  run_directory,
)
from safl_tf.training import result as result_lib
from safl_tf.util import choices, console, errors, validation


@dataclasses.dataclass(frozen=True)
class Outputs:
  """The files to write after the last round, besides plots/.

  Attributes:
    export: formats of export/: 'both', 'savedmodel', 'keras' or 'none'.
    client_table: whether to write clients.csv also if clients have no test
      examples of their own.
    settings: what the plots say of the run, see `names.subtitle`; the rules
      and the number of clients are added.
    figure_formats: of the plots, some of `choices.FIGURES`.
  """

  export: str = 'both'
  client_table: bool = False
  settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  figure_formats: Sequence[str] = ('png',)

  def __post_init__(self) -> None:
    validation.choice('export', self.export, choices.EXPORTS)
    validation.instance(
      'client_table', self.client_table, bool, 'True or False'
    )


def write(
  outputs: Outputs,
  directory: run_directory.RunDirectory,
  result: result_lib.Result,
  metadata: Mapping[str, Any],
) -> str | None:
  """Writes the files; returns the error of the export, if any.

  Args:
    outputs: what to write.
    directory: the run's folder, open.
    result: of the run.
    metadata: of exported models, with `class_names`.
  """
  with futures.ThreadPoolExecutor(1) as background:
    report = background.submit(_report, outputs, directory, result, metadata)
    failure = _export(outputs.export, directory, result, metadata)
    report.result()
  return failure


def _report(
  outputs: Outputs,
  directory: run_directory.RunDirectory,
  result: result_lib.Result,
  metadata: Mapping[str, Any],
) -> None:
  """Writes the plots and the table of clients."""
  process = result.process
  if outputs.client_table or result.client_scores is not None:
    table = client_evaluation.client_table(
      process, result.state, result.client_scores
    )
    metrics_log.write_clients(directory.path, table)
  clients = process.clients
  has_labels = clients.num_classes is not None and clients.has_examples
  plots.write_all(
    directory.path,
    result.history,
    clients.label_counts() if has_labels else None,
    metadata['class_names'],
    result_lib.subject(process, **outputs.settings),
    outputs.figure_formats,
    clients.sizes,
  )


def _export(
  formats: str,
  directory: run_directory.RunDirectory,
  result: result_lib.Result,
  metadata: Mapping[str, Any],
) -> str | None:
  """Exports the model unless the export is current; returns the error.

  All other files of the run are complete, whatever happens here.
  """
  model, path = result.process.model, directory.path
  try:
    with console.only_errors():
      export.export(
        result.model,
        path / 'export',
        model.input_spec,
        result.process.task.activation,
        formats,
        {'round': result.state.t, **metadata},
        directory.argument,
        replace_current=False,
      )
  except (errors.RunError, errors.InputError, OSError) as error:
    cause = getattr(error, 'hint', error)
    return (
      f'export={formats}: {cause}; all other files are in {path}, '
      f'safl-export --run={path} tries again'
    )
  return None
