"""How measurements are written down: Markdown, with how they were obtained."""

import datetime
import os
import pathlib
import platform
import re
import sys


def how(module: str, arguments: str | None = None) -> str:
  """The command, the date and the machine.

  Args:
    module: what was run.
    arguments: its arguments, if not as they were given (less `--write`).
  """
  if arguments is None:
    given = [a for a in sys.argv[1:] if not a.startswith('--write')]
    arguments = ' '.join(given)
  return (
    f'`python -m {module} {arguments}'.rstrip()
    + f'`, {datetime.date.today()}, {os.cpu_count()} cores ({processor()}), '
    'no GPU, seed 0.'
  )


def processor() -> str:
  """The processor's name, where the system tells."""
  try:
    text = pathlib.Path('/proc/cpuinfo').read_text()
  except OSError:
    return platform.machine()
  found = re.search(r'^model name\s*: (.*)$', text, re.MULTILINE)
  return found[1] if found else platform.machine()


def table(heads: list[str], rows: list[list[str]]) -> str:
  """A Markdown table."""
  lines = [heads, ['---'] * len(heads), *rows]
  return '\n'.join(f'| {" | ".join(line)} |' for line in lines)


def write(path: pathlib.Path | None, name: str, text: str) -> None:
  """Prints a section, and puts it into a file in place of the old one.

  Args:
    path: the file, if any; sections lie between `<!-- name -->` comments.
    name: of the section.
    text: the new section.
  """
  print(text)
  if path is None:
    return
  begin, end = f'<!-- {name} -->', f'<!-- /{name} -->'
  whole = path.read_text() if path.exists() else ''
  section = f'{begin}\n{text}\n{end}'
  pattern = re.compile(f'{re.escape(begin)}.*?{re.escape(end)}', re.DOTALL)
  if pattern.search(whole):
    whole = pattern.sub(lambda _: section, whole)
  else:
    whole = f'{whole.rstrip()}\n\n{section}\n'.lstrip()
  path.write_text(whole)
