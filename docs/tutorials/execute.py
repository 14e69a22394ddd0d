"""Executes the tutorials and stores their outputs.

  python docs/tutorials/execute.py
  python docs/tutorials/execute.py docs/tutorials/1_safl_against_fedavg.ipynb

Each notebook runs in an empty temporary folder. What is written to stderr, such
as progress bars, is shown here and not stored, so that executing a notebook
again changes little in its file.
"""

import os
import pathlib
import sys
import tempfile

import nbclient
import nbformat

FOLDER = pathlib.Path(__file__).parent
METADATA = {
  'kernelspec': {
    'display_name': 'Python 3',
    'language': 'python',
    'name': 'python3',
  },
  'language_info': {'name': 'python'},
}


def execute(path: pathlib.Path) -> None:
  """Executes a notebook and writes its outputs to the same file."""
  notebook = nbformat.read(path, as_version=4)
  with tempfile.TemporaryDirectory() as folder:
    nbclient.NotebookClient(
      notebook,
      timeout=600,
      record_timing=False,
      coalesce_streams=True,
      resources={'metadata': {'path': folder}},
    ).execute()
  notebook.metadata = nbformat.from_dict(METADATA)
  for cell in notebook.cells:
    if cell.cell_type == 'code':
      cell.outputs = [out for out in cell.outputs if _is_stored(out)]
  nbformat.write(notebook, path)


def _is_stored(output: nbformat.NotebookNode) -> bool:
  """Shows what is not stored; returns whether an output is stored."""
  if output.get('name') == 'stderr':
    print(output.text, file=sys.stderr)
    return False
  data = output.get('data', {})
  return 'application/vnd.jupyter.widget-view+json' not in data


def main(paths: list[str]) -> None:
  """Executes the notebooks at these paths, or all."""
  programs = pathlib.Path(sys.executable).parent  # safl-evaluate
  os.environ['PATH'] = f'{programs}{os.pathsep}{os.environ["PATH"]}'
  os.environ['TF_CPP_MIN_LOG_LEVEL'] = '3'
  for path in paths or sorted(FOLDER.glob('*.ipynb')):
    print(path, flush=True)
    execute(pathlib.Path(path))


if __name__ == '__main__':
  main(sys.argv[1:])
