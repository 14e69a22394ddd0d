"""The versions of what computes: Python, the packages, the processor.

Imports nothing but the standard library, so that a machine without safl_tf can
run it.
"""

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import os
import pathlib
import platform

_PACKAGES = ('tensorflow', 'keras', 'numpy', 'tensorflow-datasets')
_MISSING = 'not installed'


def find() -> dict[str, str]:
  """Returns the versions of Python, the platform and the main packages."""
  return {
    'python': platform.python_version(),
    'platform': platform.platform(),
    'cpu': cpu(),
    'cpu_count': str(os.cpu_count()),
    'safl_tf': _own_version(),
    **{package: of_package(package) for package in _PACKAGES},
  }


def fingerprint() -> dict[str, str]:
  """Returns the versions, and a digest of safl_tf's source code."""
  return {**find(), 'source': _source()}


def of_package(package: str) -> str:
  """Returns the version of an installed package."""
  try:
    return importlib.metadata.version(package)
  except importlib.metadata.PackageNotFoundError:
    return _MISSING


def cpu() -> str:
  """Returns the model of the processor, if the system names it."""
  with contextlib.suppress(OSError):
    for line in pathlib.Path('/proc/cpuinfo').read_text().splitlines():
      key, _, value = line.partition(':')
      if key.strip() == 'model name':
        return value.strip()
  return platform.processor() or platform.machine()


def _source() -> str:
  """Returns a digest of safl_tf's source code, without importing it."""
  folder = _own_folder()
  if folder is None:
    return _MISSING
  digest = hashlib.sha256()
  for path in sorted(folder.rglob('*.py')):
    name = path.relative_to(folder)
    if name.parts[0] != 'binaries':  # beside the package in a source tree
      digest.update(f'{name}\n'.encode())
      digest.update(path.read_bytes())
  return digest.hexdigest()[:8]


def _own_folder() -> pathlib.Path | None:
  spec = importlib.util.find_spec('safl_tf')
  return None if spec is None else pathlib.Path(spec.origin or '').parent


def _own_version() -> str:
  """Returns the version in safl_tf/version.py, of an older install too."""
  folder = _own_folder()
  if folder is None:
    return _MISSING
  return (folder / 'version.py').read_text().split("'")[-2]
