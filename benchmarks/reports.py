"""Writes measurements as Markdown sections."""

import datetime
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys


def provenance(module: str, arguments: str | None = None) -> str:
  """Returns the command, the date and the machine.

  Args:
    module: the module that was run.
    arguments: its arguments; by default those given, without `--write`.
  """
  if arguments is None:
    given = [a for a in sys.argv[1:] if not a.startswith('--write')]
    arguments = ' '.join(given)
  return (
    f'`python -m {module} {arguments}'.rstrip()
    + f'`, {datetime.date.today()}, {os.cpu_count()} cores ({processor()}), '
    f'{gpus()}, seed 0.'
  )


def gpus() -> str:
  """Returns the names of NVIDIA's GPUs; 'no GPU' without its driver."""
  command = ['nvidia-smi', '--query-gpu=name', '--format=csv,noheader']
  if shutil.which(command[0]) is None:
    return 'no GPU'
  listed = subprocess.run(command, capture_output=True, text=True, timeout=60)
  names = [] if listed.returncode else listed.stdout.splitlines()
  return ', '.join(names) or 'no GPU'


def processor() -> str:
  """Returns the processor's name, or its architecture if unknown."""
  try:
    text = pathlib.Path('/proc/cpuinfo').read_text()
  except OSError:
    return platform.machine()
  match = re.search(r'^model name\s*: (.*)$', text, re.MULTILINE)
  return match[1] if match else platform.machine()


def write(path: pathlib.Path | None, name: str, text: str) -> None:
  """Prints a section and replaces it in a file.

  Args:
    path: the file, if any; `<!-- name -->` and `<!-- /name -->` delimit the
      section, which is appended if missing.
    name: the section's name.
    text: the section's content.
  """
  print(text)
  if path is None:
    return
  begin, end = f'<!-- {name} -->', f'<!-- /{name} -->'
  content = path.read_text() if path.exists() else ''
  section = f'{begin}\n{text}\n{end}'
  pattern = re.compile(f'{re.escape(begin)}.*?{re.escape(end)}', re.DOTALL)
  if pattern.search(content):
    content = pattern.sub(lambda _: section, content)
  else:
    content = f'{content.rstrip()}\n\n{section}\n'.lstrip()
  path.write_text(content)
