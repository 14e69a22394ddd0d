"""The app that Flower is given. It has no code: the programs have it."""

import hashlib

from flwr.cli.build import build_fab_from_files
from flwr.supercore.fab import Fab

from safl_tf import version

_PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "safl"
version = "{version}"
description = "safl_tf on real clients; runs with safl-server and safl-client"
license = "Apache-2.0"
dependencies = []

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "safl-tf"

[tool.flwr.app.components]
serverapp = "safl_app:server"
clientapp = "safl_app:client"

[tool.flwr.app.config]
"""
_MODULE = """
raise RuntimeError('this app runs with safl-server and safl-client only')
server = client = None
"""


def create() -> Fab:
  """Returns the app."""
  content, _ = build_fab_from_files(
    {
      'pyproject.toml': _PROJECT.format(version=version.__version__).encode(),
      'safl_app.py': _MODULE.encode(),
    }
  )
  return Fab(hashlib.sha256(content).hexdigest(), content, {})
