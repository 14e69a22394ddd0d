"""The pages of docs/ and their Python code."""

import pathlib
import re
import textwrap

DOCS = pathlib.Path(__file__).parents[2] / 'docs'
_BLOCK = re.compile(r'^( *)```python\n(.*?)^\1```', re.DOTALL | re.MULTILINE)


def text(name):
  """Returns a page, such as 'how_to/runs.md', as Markdown."""
  return (DOCS / name).read_text('utf-8')


def blocks(name):
  """Returns the Python blocks of a page."""
  return [textwrap.dedent(match[2]) for match in _BLOCK.finditer(text(name))]


def run(name, names):
  """Runs the blocks of a page in turn, in one namespace."""
  for i, block in enumerate(blocks(name)):
    exec(compile(block, f'{name}, block {i + 1}', 'exec'), names)
  return names


def with_code():
  """Returns the names of all pages that have Python blocks."""
  names = (path.relative_to(DOCS).as_posix() for path in DOCS.rglob('*.md'))
  return sorted(name for name in names if blocks(name))
