"""safl_tf: simulated-annealing federated learning for Keras models.

`__init__.pyi` lists the public names; each is imported on first use, so that
`import safl_tf` does not load TensorFlow.
"""

import ast
import importlib
import pathlib
from typing import Any

_STUB = ast.parse(pathlib.Path(__file__).with_suffix('.pyi').read_text())
_HOMES = {  # public name -> the module or package that has it
  alias.name: node.module
  for node in _STUB.body
  if isinstance(node, ast.ImportFrom) and node.module
  for alias in node.names
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
  if name not in _HOMES:
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
  home = importlib.import_module(_HOMES[name])
  if hasattr(home, name):
    return getattr(home, name)
  return importlib.import_module(f'{home.__name__}.{name}')


def __dir__() -> list[str]:
  return __all__
