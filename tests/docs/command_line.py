"""Writes docs/reference/command_line.md from the programs' flags.

python -m tests.docs.command_line
"""

import functools
import html
import importlib
import pathlib
import re
import textwrap

from absl import flags as absl_flags

PAGE = pathlib.Path(__file__).parents[2] / 'docs/reference/command_line.md'
PROGRAMS = (
  'train',
  'compare',
  'sweep',
  'partition',
  'export',
  'evaluate',
  'reproduce',
  'theory',
  'server',
  'client',
)
TOP = """\
# Command line

`pip install safl_tf` installs ten programs. `--help` prints what this page says
of one. A letter in brackets is the paper's. A flag that has no effect with the
others is refused. Exit codes: 0 is success, 1 a failure such as a full disk or
a model that diverged, 2 a wrong flag or file, 130 and 143 an interruption.
"""


def flags_of(module):
  """Returns the flags of a program by topic."""
  is_partial = isinstance(module.cli, functools.partial)
  define = module.cli.args[2] if is_partial else module.define
  flags = absl_flags.FlagValues()
  define(flags)
  return flags.flags_by_module_dict()


def page():
  """Returns the text of the page."""
  parts = [TOP]
  known = {}  # name -> text, of safl-train
  for name in PROGRAMS:
    module = importlib.import_module(f'binaries.{name}')
    topics = flags_of(module)
    parts += [f'## safl-{name}', text(module.__doc__)]
    shared = []
    for topic, members in topics.items():
      same = [f for f in members if known.get(f.name) == row(f)]
      own = [flag for flag in members if flag not in same]
      if same:
        names = ', '.join(f'`--{flag.name}`' for flag in same)
        shared.append(f'*{topic}*: {names}')
      if own:
        parts.append(f'### {topic} {{: #{name}-{slug(topic)} }}')
        parts.append('\n'.join(map(row, own)))
    if shared:
      title = 'These flags are those of [safl-train](#safl-train):'
      parts.append('\n\n'.join([title, *shared]))
    known = known or {f.name: row(f) for m in topics.values() for f in m}
  return '\n\n'.join(part.strip('\n') for part in parts) + '\n'


def row(flag):
  """Returns the list item of a flag."""
  name = f'[no]{flag.name}' if flag.boolean else flag.name
  meaning = re.sub(r'([|*_])', r'\\\1', html.escape(flag.help, quote=False))
  meaning = re.sub(r'--[\w\\]+(=[\w:\\]+(,\w+)*)?', as_code, meaning)
  if flag.default in (None, '', []):
    return f'- `--{name}` – {meaning}'
  return f'- `--{name}` (default: `{flag.default}`) – {meaning}'


def as_code(match):
  """Returns a flag in a text as code."""
  return f'`{match[0]}`'.replace('\\', '')


def text(docstring):
  """Returns a program's description; commands become code."""
  lines = [
    f'  {line}' if line.startswith('  ') else line
    for line in docstring.strip().splitlines()
  ]
  return textwrap.dedent('\n'.join(lines))


def slug(topic):
  """Returns the anchor of a topic."""
  return re.sub(r'\W+', '-', topic.lower())


if __name__ == '__main__':
  PAGE.write_text(page())
