"""The README is short, and works where relative links do not."""

import pathlib
import re

import keras
import numpy as np
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
PEERS = ('TFF', 'Flower', 'FedJAX', 'pfl')


def test_is_short():
  assert README.count('\n') <= 120


def test_links_are_found():
  assert any(target.endswith('.png') for target in TARGETS)
  assert len(TARGETS) > 5


@pytest.mark.parametrize('target', [t for t in TARGETS if PROJECT in t])
def test_links_are_absolute_and_have_a_file(target):
  prefix = next(p for p in PREFIXES if target.startswith(p))
  assert (ROOT / target.removeprefix(prefix)).is_file()


def test_references_are_defined():
  used = set(re.findall(r'\]\[(\w+)\]', README))
  defined = set(re.findall(r'^\[(\w+)\]: ', README, re.MULTILINE))
  assert used == defined


def test_other_links_are_of_peers():
  others = [target for target in TARGETS if PROJECT not in target]
  assert len(others) == len(PEERS)
  for name in PEERS:
    (link,) = re.findall(rf'\[{name}\]\[(\w+)\]', README)
    assert re.search(rf'^\[{link}\]: https://github.com/', README, re.MULTILINE)


def test_python_runs(monkeypatch, tmp_path):
  (block,) = re.findall(r'```python\n(.*?)```', README, re.DOTALL)
  assert block.count('\n') <= 12
  monkeypatch.chdir(tmp_path)
  rng = np.random.default_rng(0)
  y = rng.integers(0, 10, 200)
  x = rng.normal(size=(200, 8))
  names = {'x': x, 'y': y, 'x_test': x[:50], 'y_test': y[:50]}
  names['make_model'] = lambda: keras.Sequential(
    [keras.Input((8,)), keras.layers.Dense(10, activation='softmax')]
  )
  exec(block.replace('rounds=30', "rounds=2, jit_compile='false'"), names)
  assert len(names['result'].frame) == 2
  assert (tmp_path / 'runs/mine/metrics.csv').is_file()
