"""Broken runs beside the one that is wanted: skipped or named."""

import errno
import os

import pytest

from binaries import runs
from safl_tf.training import hparams as hparams_lib
from safl_tf.training import metrics_log
from tests.attack.test_programs import system_error
from tests.binaries import programs

BROKEN_HPARAMS = {
  'a list': '[]',
  'null': 'null',
  'a number': '3',
  'a string': '"x"',
  'empty': '',
  'no JSON': '{"format":',
  'no flags': f'{{"format": {hparams_lib.FORMAT}}}',
  'flags a list': f'{{"format": {hparams_lib.FORMAT}, "flags": []}}',
  'flags null': f'{{"format": {hparams_lib.FORMAT}, "flags": null}}',
  'no text': b'\xff\xfe\x00',
}
HEADER = ','.join(metrics_log.COLUMNS)
ZEROS = ',0' * (len(metrics_log.COLUMNS) - 1)
BROKEN_METRICS = {
  'empty': '',
  'another header': 'a,b\n1,2\n',
  'a column less': f'{HEADER[:-7]}\n1{ZEROS[:-2]}\n',
  'words': f'{HEADER}\n{HEADER}\n',
  'a missing round': f'{HEADER}\n{ZEROS}\n',
  'another first round': f'{HEADER}\n2{ZEROS}\n',
  'a fraction of a round': f'{HEADER}\n0.5{ZEROS}\n',
  'no text': b'\xff\xfe\x00',
}


@pytest.fixture
def run(tmp_path):
  """A finished run of one round beside others, and how to change its files."""
  config = programs.config(
    f'--output_dir={tmp_path}/b', '--experiment=x_seed0', '--rounds=1'
  )
  path = tmp_path / 'a' / 'y_seed0'
  (path / 'checkpoints').mkdir(parents=True)
  (path / 'checkpoints' / 'round_000001.json').write_text('{}')
  (path / 'metrics.csv').write_text(f'{HEADER}\n1{ZEROS}\n')
  hparams_lib.write(path, hparams_lib.create({}, config.to_dict()))
  return config, path


def write(path, content):
  path.write_bytes(content if isinstance(content, bytes) else content.encode())


def test_a_neighbour_is_found(run):
  config, path = run
  assert runs.find_finished(config).path == path


@pytest.mark.parametrize('content', BROKEN_HPARAMS)
def test_a_neighbour_with_broken_hparams_is_skipped(run, content):
  config, path = run
  write(path / 'hparams.json', BROKEN_HPARAMS[content])
  assert runs.find_finished(config) is None


def test_a_neighbour_that_cannot_be_read_is_skipped(run, monkeypatch):
  config, path = run
  listdir = os.listdir

  def refuse(folder='.'):
    if os.fspath(folder).startswith(str(path)):
      raise system_error(errno.EACCES, folder)
    return listdir(folder)

  monkeypatch.setattr(os, 'listdir', refuse)
  assert runs.find_finished(config) is None


def test_a_broken_run_in_a_comparison_is_named(call, no_tensorflow, tmp_path):
  folder = tmp_path / 'mine'
  (folder / 'fedavg_seed7').mkdir(parents=True)
  (folder / '.safl_tf').write_text('comparison\n')
  (folder / 'fedavg_seed7' / 'hparams.json').write_text('{"format":')
  before = programs.snapshot(tmp_path)
  outcome = call('compare', f'--output_dir={tmp_path}', '--experiment=mine')
  programs.check_refused(
    outcome,
    'compare',
    f'--experiment={folder}/fedavg_seed7: ... hparams.json cannot be parsed',
  )
  assert programs.snapshot(tmp_path) == before


@pytest.mark.parametrize('content', BROKEN_METRICS)
def test_a_neighbour_with_broken_metrics_is_skipped(run, content):
  config, path = run
  write(path / 'metrics.csv', BROKEN_METRICS[content])
  assert runs.find_finished(config) is None


@pytest.mark.parametrize('name', ['hparams.json', 'metrics.csv', 'checkpoints'])
def test_a_neighbour_with_another_kind_of_file_is_skipped(run, name):
  config, path = run
  if name == 'checkpoints':
    (path / name / 'round_000001.json').unlink()
    (path / name).rmdir()
    (path / name).write_text('')
  else:
    (path / name).unlink()
    (path / name).mkdir()
  assert runs.find_finished(config) is None
