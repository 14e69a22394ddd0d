"""safl-partition, and the partitions of safl-train."""

import dataclasses
import json

import numpy as np
import pytest

from binaries.flags.data import Data
from binaries.flags.partition import Partition
from safl_tf.data import client_data, partition, registry
from safl_tf.reporting import plots
from safl_tf.training import hparams as hparams_lib
from safl_tf.training import metrics_log
from safl_tf.util import choices, errors
from tests.binaries import programs

SETTINGS = {
  'labels': 'num_clients max_labels mean_examples variance_examples seed',
  'iid': 'num_clients mean_examples variance_examples seed',
  'dirichlet': 'num_clients dirichlet_alpha mean_examples variance_examples '
  'seed',
  'shards': 'num_clients shards_per_client seed',
  'quantity': 'num_clients quantity_sigma seed',
  'client': 'min_examples',
  'biased': 'num_clients biased_fraction max_labels biased_label mean_examples '
  'variance_examples seed',
}
SPECIAL = {
  'labels': (['--max_labels=1'], partition.by_labels(20, 1, 200)),
  'iid': (['--variance_examples=0'], partition.iid(20, 200, 0)),
  'dirichlet': (['--dirichlet_alpha=3'], partition.dirichlet(20, 3, 200)),
  'shards': (['--shards_per_client=5'], partition.shards(20, 5)),
  'quantity': (['--quantity_sigma=0.2'], partition.quantity(20, 0.2)),
  'biased': (
    ['--biased_fraction=0.2', '--biased_label=4', '--mean_examples=50'],
    partition.biased(20, 0.2, 7, 4, 50),
  ),
}


@pytest.fixture(scope='module')
def sample():
  return registry.load('mnist_sample')


@pytest.fixture
def spread(call, tmp_path, monkeypatch):
  """Runs safl-partition without pictures: outcome and manifest's path."""
  monkeypatch.setattr(plots, 'partition', lambda *args: None)

  def run(*arguments, name='out'):
    folder = tmp_path / name
    outcome = call('partition', *arguments, f'--output_dir={folder}')
    return outcome, folder / 'manifest.json'

  return run


def rows(clients):
  """The rows of each client."""
  return [clients.indices(k).tolist() for k in range(clients.num_clients)]


def spread_by(path, dataset):
  return client_data.ClientData.from_arrays(
    dataset.x_train, dataset.y_train, partition.from_manifest(path)
  )


def by_writers(dataset):
  """The data set with three people, of 10, 1000 and 2990 examples."""
  client = np.repeat(['one', 'some', 'most'], [10, 1000, 2990])
  return dataclasses.replace(dataset, client_ids=client)


def test_files(call, tmp_path):
  outcome = call('partition', f'--output_dir={tmp_path}/a/b')
  assert outcome.code == 0, outcome.err
  folder = tmp_path / 'a' / 'b'
  assert {path.name for path in folder.iterdir()} == {
    '.safl_tf',
    'heterogeneity.json',
    'manifest.json',
    'partition.png',
  }
  assert (folder / 'partition.png').read_bytes().startswith(b'\x89PNG')
  report = json.loads((folder / 'heterogeneity.json').read_text())
  sizes = [
    len(client['indices'])
    for client in json.loads((folder / 'manifest.json').read_text())['clients']
  ]
  assert report['num_clients'] == len(sizes) == 20
  assert report['sizes']['mean'] == pytest.approx(np.mean(sizes))
  assert report['labels']['max'] == 7
  assert outcome.out.startswith('clients          20\n')
  assert outcome.out.endswith(f'files            {folder}\n')


@pytest.mark.parametrize('name', SPECIAL)
def test_flags_are_arguments(spread, sample, name):
  arguments, function = SPECIAL[name]
  _, usual = spread(f'--partition={name}', name='usual')
  outcome, path = spread(f'--partition={name}', *arguments)
  assert outcome.code == 0, outcome.err
  wanted = client_data.ClientData.from_arrays(
    sample.x_train, sample.y_train, function
  )
  assert rows(spread_by(path, sample)) == rows(wanted)
  assert rows(spread_by(usual, sample)) != rows(wanted)


@pytest.mark.parametrize('name', choices.PARTITIONS)
def test_manifest_has_the_used_flags(spread, sample, monkeypatch, name):
  monkeypatch.setattr(registry, 'load', lambda *args: by_writers(sample))
  defaults = {'max_labels': 3, 'shards_per_client': 4, 'min_examples': 2}
  used = [f for f in defaults if f in SETTINGS[name].split()]
  given = [f'--{flag}={defaults[flag]}' for flag in used]
  outcome, path = spread(f'--partition={name}', *given)
  assert outcome.code == 0, outcome.err
  settings = json.loads(path.read_text())['partition']
  assert settings.pop('partition') == name
  assert ' '.join(settings) == SETTINGS[name]
  assert all(settings[flag] == defaults[flag] for flag in used)


def test_seed(spread):
  texts = [
    spread('--partition=shards', f'--seed={seed}')[1].read_text()
    for seed in (1, 1, 2)
  ]
  assert texts[0] == texts[1] != texts[2]


def test_manifest_of_a_manifest(spread):
  _, path = spread('--partition=quantity')
  text = path.read_text()
  outcome, other = spread(f'--partition=manifest:{path}', name='other')
  assert outcome.code == 0, outcome.err
  assert other.read_text() == text
  assert spread(f'--partition=manifest:{path}')[0].code == 0  # onto itself
  assert path.read_text() == text


def test_default_folder(call, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(plots, 'partition', lambda *args: None)
  assert call('partition', '--partition=shards').code == 0
  assert (tmp_path / 'partitions/mnist_sample_shards/manifest.json').exists()


def test_clients(spread, sample, monkeypatch):
  monkeypatch.setattr(registry, 'load', lambda *args: by_writers(sample))
  outcome, path = spread('--partition=client', '--min_examples=11')
  assert outcome.code == 0, outcome.err
  clients = spread_by(path, sample)
  assert clients.client_ids == ['most', 'some']
  assert clients.sizes.tolist() == [2990, 1000]
  assert spread('--partition=client', '--num_clients=3')[0].code == 0
  for arguments, message in (
    (
      ['--num_clients=4'],
      '--num_clients=4: must be 3 or omitted: --partition=client has 3 ',
    ),
    (['--min_examples=3000'], '--min_examples=3000: no client has so many '),
  ):
    outcome, path = spread('--partition=client', *arguments, name='refused')
    assert outcome.code == 2
    assert outcome.err.startswith(f'safl-partition: {message}')
    assert not path.parent.exists()


BAD = [
  ('--partition=idd', '--partition=idd: '),
  ('--partition=manifest', '--partition=manifest: '),
  ('--partition=manifest:', '--partition=manifest:: '),
  ('--partition=manifest:no', '--partition=manifest:no: cannot be read: No su'),
  ('--partition=manifest:notes.txt', '--partition=manifest:notes.txt: '),
  ('--partition=manifest:wrong.json', '--partition=manifest:wrong.json: '),
  (
    '--partition=manifest:mnist.json',
    '--partition=manifest:mnist.json: is a partition of --dataset=mnist, ',
  ),
  (
    '--partition=manifest:good.json --num_clients=2',
    '--num_clients=2: must be 1 or omitted: --partition=manifest:good.json ',
  ),
  ('--dirichlet_alpha=0', '--dirichlet_alpha=0.0: '),
  ('--dirichlet_alpha=x', '--dirichlet_alpha=x: '),
  ('--shards_per_client=0', '--shards_per_client=0: '),
  ('--quantity_sigma=-1', '--quantity_sigma=-1.0: '),
  ('--biased_fraction=2', '--biased_fraction=2.0: '),
  ('--biased_label=-1', '--biased_label=-1: '),
  ('--min_examples=0', '--min_examples=0: '),
  ('--num_clients=0', '--num_clients=0: '),
]
ONLY_HERE = [
  (
    '--partition=client',
    '--partition=client: mnist_sample has no client names; choose anoth',
  ),
  ('--partition=manifest:good.json', '--partition=manifest:good.json: '),
  ('--partition=biased --max_labels=1', '--max_labels=1: '),
  ('--partition=biased --biased_label=10', '--biased_label=10: '),
  (
    '--output_dir=notes.txt/a',
    '--output_dir=notes.txt/a: notes.txt is not a f',
  ),
  ('--rounds=3', '--rounds=3: '),
]


def fill(folder):
  (folder / 'notes.txt').write_text('not JSON')
  manifest = {
    'format': 'safl_tf partition 1',
    'dataset': 'mnist_sample',
    'partition': {},
    'num_classes': 10,
    'num_examples': 4000,
    'labels_sha256': '',
    'clients': [{'id': 'a', 'indices': [3999], 'label_counts': {}}],
  }
  (folder / 'good.json').write_text(json.dumps(manifest))
  other = manifest | {'dataset': 'mnist'}
  (folder / 'mnist.json').write_text(json.dumps(other))
  manifest['clients'][0]['indices'] = [4000]
  (folder / 'wrong.json').write_text(json.dumps(manifest))
  return programs.snapshot(folder)


@pytest.mark.parametrize('arguments, message', [*BAD, *ONLY_HERE])
def test_bad_input(call, tmp_path, monkeypatch, arguments, message):
  monkeypatch.chdir(tmp_path)
  before = fill(tmp_path)
  outcome = call('partition', *arguments.split())
  programs.check_refused(outcome, 'partition', message)
  assert programs.snapshot(tmp_path) == before


def test_bad_input_of_training_before_tensorflow(tmp_path):
  before = fill(tmp_path)
  cases = [('train', arguments.split(), tmp_path) for arguments, _ in BAD]
  outcomes = programs.call_light(cases)
  for outcome, (_, message) in zip(outcomes, BAD, strict=True):
    programs.check_refused(outcome, 'train', message)
  assert programs.snapshot(tmp_path) == before


LIGHT = """
import sys
from binaries import partition
try:
  partition.cli()
finally:
  assert not {'keras', 'tensorflow'} & set(sys.modules)
"""


@pytest.mark.parametrize('arguments', [['--help'], ['--partition=shards']])
def test_without_tensorflow(tmp_path, arguments):
  process = programs.start('-c', LIGHT, *arguments, cwd=tmp_path)
  out, err = process.communicate(timeout=120)
  assert (process.returncode, err) == (0, '')
  if arguments == ['--help']:
    assert list(tmp_path.iterdir()) == []
    names = programs.flag_names(Data) | programs.flag_names(Partition)
    for name in (*names, 'preset', 'seed', 'output_dir'):
      assert f'\n  --{name}: ' in out
  else:
    assert 'total-variation distance' in out


@pytest.fixture
def train(call, tmp_path, dense, monkeypatch):
  monkeypatch.setattr(plots, 'write_all', lambda *args: None)
  quick = ('--rounds=1', '--export=none', '--jit_compile=false')

  def run(*arguments, name='run'):
    where = (f'--experiment={name}', f'--output_dir={tmp_path}/runs')
    model = f'--model={dense}'
    outcome = call('train', *quick, *where, model, *arguments)
    return outcome, tmp_path / 'runs' / name

  return run


def test_training_by_manifest(spread, train):
  flags = ('--partition=dirichlet', '--num_clients=3', '--mean_examples=40')
  _, path = spread(*flags)
  by_flags, by_file = (
    train(*flags, name='flags'),
    train(f'--partition=manifest:{path}', name='file'),
  )
  assert by_flags[0].code == by_file[0].code == 0
  assert programs.metrics(by_flags[1]) == programs.metrics(by_file[1])
  flags = hparams_lib.read(by_file[1])['flags']
  assert flags['num_clients'] == 3
  assert flags['partition'] == f'manifest:{path}'


def test_another_manifest_of_the_same_name(spread, train):
  flags = ('--partition=shards', '--num_clients=3')
  _, path = spread(*flags)
  again = (f'--partition=manifest:{path}', '--rounds=2')
  assert train(f'--partition=manifest:{path}')[0].code == 0
  assert train(*again)[0].code == 0
  spread(*flags, '--seed=1')
  outcome, run = train(*again, '--rounds=3')
  assert outcome.code == 2
  assert 'made with other flags (partition_sha256 was ' in outcome.err
  assert len(metrics_log.read_csv(run / 'metrics.csv')) == 2


def test_manifest_that_changes_while_a_program_starts(spread, sample):
  flags = ('--partition=shards', '--num_clients=3')
  _, path = spread(*flags)
  given = Partition(partition=f'manifest:{path}')
  resolved = given.resolve_partition('mnist_sample')
  assert resolved.clients(sample, seed=0)[0].num_clients == 3
  spread(*flags, '--seed=1')
  with pytest.raises(errors.InputError, match=r'json: has changed meanwhile$'):
    resolved.clients(sample, seed=0)


def test_training_by_client(train, sample, monkeypatch):
  monkeypatch.setattr(registry, 'load', lambda *args: by_writers(sample))
  outcome, run = train('--partition=client', '--min_examples=20')
  assert outcome.code == 0, outcome.err
  assert programs.metrics(run)[0]['selected'] == 2
  assert hparams_lib.read(run)['flags']['num_clients'] is None
  outcome, other = train(
    '--partition=client', '--clients_per_round=4', name='too_many'
  )
  programs.check_refused(
    outcome,
    'train',
    '--clients_per_round=4: must be at most the number of clients, 3',
  )
  assert not other.exists()
