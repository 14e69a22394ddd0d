"""The README works on a package index page, where relative links do not."""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parent.parent
README = (ROOT / 'README.md').read_text()
PROJECT = 'safl-tf/safl_tf'
LINKS = re.findall(r'\]\(([^)]+)\)|^\[\w+\]: (\S+)$', README, re.MULTILINE)
TARGETS = sorted({inline or reference for inline, reference in LINKS})
PREFIXES = (
  f'https://github.com/{PROJECT}/blob/main/',
  f'https://raw.githubusercontent.com/{PROJECT}/main/',
)


def test_links_are_found():
  assert any(target.endswith('.png') for target in TARGETS)
  assert len(TARGETS) > 5


@pytest.mark.parametrize('target', TARGETS)
def test_links_are_absolute_and_have_a_file(target):
  prefix = next(p for p in PREFIXES if target.startswith(p))
  assert (ROOT / target.removeprefix(prefix)).is_file()


def test_references_are_defined():
  used = set(re.findall(r'\]\[(\w+)\]', README))
  defined = set(re.findall(r'^\[(\w+)\]: ', README, re.MULTILINE))
  assert used == defined
