"""safl-partition --export_clients, and the data of a client by its flags."""

import numpy as np
import pytest
from PIL import Image

from binaries.flags.client_data import ClientExamples
from safl_tf.data import client_file, partition
from safl_tf.reporting import plots
from safl_tf.util import errors
from tests.binaries import programs

ROWS = 40
COLOURS = ['red', 'blue', 'green', 'blue']
LABELS = ['cat', 'dog', 'elk']


@pytest.fixture
def files(tmp_path, monkeypatch):
  """Data files of every form in the working directory."""
  monkeypatch.chdir(tmp_path)
  rng = np.random.default_rng(0)
  x = rng.normal(size=(ROWS, 3)).round(3)
  labels = np.arange(ROWS) % 3
  lines = [
    f'{a},{b},{COLOURS[i % 4]},{1 + i % 2},{LABELS[i % 3]}'
    for i, (a, b, _) in enumerate(x)
  ]
  text = '\n'.join(['a,b,colour,w,label', *lines])
  (tmp_path / 'pets.csv').write_text(text)
  lines = [f'{a},{b},{c},{i // 10}' for i, (a, b, c) in enumerate(x)]
  text = '\n'.join(['a,b,y,client', *lines])
  (tmp_path / 'houses.csv').write_text(text)
  np.savez(
    'images.npz', x=rng.integers(256, size=(ROWS, 4, 4), dtype='u1'), y=labels
  )
  np.savez('tags.npz', x=x, y=(x > 0).astype(int))
  for i in range(ROWS):
    folder = tmp_path / 'pictures' / LABELS[i % 2]
    folder.mkdir(parents=True, exist_ok=True)
    pixels = rng.integers(256, size=(3, 3), dtype='u1')
    Image.fromarray(pixels).save(folder / f'{i}.png')
  return tmp_path


@pytest.fixture
def export(call, monkeypatch):
  """Runs safl-partition without pictures."""
  monkeypatch.setattr(plots, 'partition', lambda *args: None)
  return lambda *arguments: call('partition', *arguments)


FEW = ('--num_clients=3', '--mean_examples=15', '--variance_examples=4')
FORMS = {
  'mnist_sample': ('--num_clients=3', '--mean_examples=30'),
  'diabetes': (),
  'synthetic_multi_label': ('--partition=iid', '--num_clients=3'),
  'python_docs': ('--min_examples=100',),
  'csv:pets.csv': ('--weight_column=w', '--partition=dirichlet', *FEW),
  'csv:houses.csv': ('--task=regression', '--partition=client'),
  'npz:images.npz': ('--partition=labels', *FEW),
  'npz:tags.npz': ('--task=multi_label', *FEW),
  'folder:pictures': ('--partition=shards', '--num_clients=3'),
}


def same(array, expected):
  if expected is None:
    return array is None
  return (array.dtype, array.shape, array.tobytes()) == (
    expected.dtype,
    expected.shape,
    expected.tobytes(),
  )


@pytest.mark.parametrize('name', FORMS)
def test_clients_have_the_rows_of_training(export, files, name):
  flags = (f'--dataset={name}', *FORMS[name], '--seed=3')
  outcome = export(*flags, '--output_dir=out', '--export_clients=data')
  assert outcome.code == 0, outcome.err
  assert outcome.out.endswith("clients' files   data\n")
  config = programs.config(*flags)
  dataset = config.load()
  clients, _ = config.clients(dataset, config.seed)
  n = clients.num_clients
  names = [f'client_{k}.npz' for k in range(n)]
  found = {path.name for path in (files / 'data').iterdir()}
  assert found == {*names, 'server.npz', '.safl_tf'}
  manifest = partition.from_manifest('out/manifest.json')
  for k in range(n):
    file = client_file.read(f'data/{names[k]}')
    rows = clients.indices(k)
    assert rows.tolist() == manifest.parts[k].tolist()
    own, w = file.examples, clients.sample_weight
    assert same(own.x, clients.x[rows]) and same(own.y, clients.y[rows])
    assert same(own.sample_weight, None if w is None else w[rows])
    assert (file.client, file.client_id) == (k, clients.client_ids[k])
    assert file.num_clients == n
    assert file.facts.metadata == dataset.metadata
    assert file.facts.num_classes == dataset.num_classes
    assert file.facts.task == dataset.task
  server = client_file.read('data/server.npz')
  assert server.facts == file.facts and server.client is None
  test = (*dataset.test_data, None)
  assert all(map(same, server.examples[:3], test))


QUICK = ('--partition=shards', '--num_clients=3', '--output_dir=out')


def test_export_again(export, files):
  flags = (*QUICK, '--export_clients=data')
  assert export(*flags).code == 0
  first = programs.snapshot(files / 'data')
  assert export(*flags).code == 0
  assert programs.snapshot(files / 'data') == first
  assert export(*flags, '--num_clients=2').code == 0
  names = {path.name for path in (files / 'data').iterdir()}
  assert names == {'.safl_tf', 'client_0.npz', 'client_1.npz', 'server.npz'}
  assert export(*flags, '--export_clients=out/data').code == 0
  assert (files / 'out' / 'data' / 'client_2.npz').exists()


@pytest.mark.parametrize(
  'folder, hint',
  [
    ('out', 'must not be, or contain, the other output folder, out'),
    ('.', 'has files that safl_tf did not write, such as '),
    ('pictures', 'has files that safl_tf did not write, such as cat'),
    ('pets.csv', 'pets.csv is not a folder that can be written to'),
    ('new', 'must not be, or contain, the other output folder, new/out'),
    ('run', 'is the folder of a run; '),
    ('run/data', 'is inside ... /run, the folder of a run; '),
  ],
)
def test_folders_that_are_refused(export, files, folder, hint):
  (files / 'run').mkdir()
  (files / 'run' / '.safl_tf').write_text('run\n')
  before = programs.snapshot(files)
  out = 'new/out' if folder == 'new' else 'out'
  flags = (*QUICK, f'--output_dir={out}', f'--export_clients={folder}')
  outcome = export(*flags)
  message = f'--export_clients={folder}: ... {hint}'
  programs.check_refused(outcome, 'partition', message)
  assert programs.snapshot(files) == before


# Own data.


def parsed(*arguments):
  """Returns checked flags of the data of a client."""
  flags = programs.parse(ClientExamples.define, *arguments)
  group = ClientExamples.get(flags)
  group.check_effects(flags)
  group.check()
  return group


PETS = ('--data=csv:pets.csv', '--class_names=ant,cat,dog,elk')
# Flags -> the shape of a row, the number of classes.
OWN = {
  PETS: ([6], 4),  # a, b, w and three colours
  (*PETS, '--weight_column=w', '--categorical=a'): ([44], 4),
  ('--data=csv:flat.csv', '--task=regression'): ([3], None),
  ('--data=npz:images.npz', '--num_classes=10'): ([4, 4, 1], 10),
  ('--data=npz:tags.npz', '--task=multi_label'): ([3], None),
  ('--data=folder:pictures', '--class_names=dog,cat', '--image_size=2,2'): (
    [2, 2, 1],
    2,
  ),
}


@pytest.mark.parametrize('flags', OWN)
def test_own_data(files, flags):
  """All rows are there, in the order of the file, and can be stored."""
  text = (files / 'houses.csv').read_text().replace('client', 'size')
  (files / 'flat.csv').write_text(text.replace(',y,', ',label_,'))
  shape, num_classes = OWN[flags]
  file = parsed(*flags).load()
  facts, own = file.facts, file.examples
  assert own.x.shape == (ROWS, *shape)
  assert facts.num_classes == num_classes
  assert file[2:] == (None, None, None)
  assert facts.name == 'own_data'
  client_file.write('own.npz', file)
  again = client_file.read('own.npz')
  assert again.facts == facts
  assert client_file.digest(again) == client_file.digest(file)


def test_own_rows_and_labels(files):
  own = parsed(*PETS, '--weight_column=w').load().examples
  lines = [x.split(',') for x in (files / 'pets.csv').read_text().splitlines()]
  a, b, colour, w, label = zip(*lines[1:], strict=True)
  np.testing.assert_array_equal(own.x[:, 0], np.array(a, np.float32))
  np.testing.assert_array_equal(own.x[:, 1], np.array(b, np.float32))
  codes = [['blue', 'green', 'red'].index(c) for c in colour]
  np.testing.assert_array_equal(own.x[:, 2:], np.eye(3)[codes])
  np.testing.assert_array_equal(own.sample_weight, np.array(w, np.float32))
  assert own.y.tolist() == [['', *LABELS].index(c) for c in label]
  numbers = parsed('--data=npz:images.npz', '--num_classes=10').load().examples
  with np.load('images.npz') as archive:
    np.testing.assert_array_equal(numbers.y, archive['y'])
    np.testing.assert_array_equal(numbers.x[..., 0], archive['x'])


def test_an_exported_file(export, files):
  assert export(*QUICK, '--export_clients=data').code == 0
  expected = client_file.read('data/client_1.npz')
  file = parsed('--data=data/client_1.npz').load()
  assert client_file.digest(file) == client_file.digest(expected)
  assert (file.client, file.num_clients) == (1, 3)


def test_clients_with_other_data_differ(files):
  """What would be trained on in another meaning is in the facts."""
  facts = parsed(*PETS).load().facts
  text = (files / 'pets.csv').read_text()

  def of(text, *more):
    (files / 'other.csv').write_text(text)
    group = parsed('--data=csv:other.csv', *(more or PETS[1:]))
    return facts.differences(group.load().facts)

  lines = text.splitlines()
  assert of('\n'.join(lines[:9])) == {}  # fewer rows, under another name
  assert of('\n'.join(lines[:5])) == {}
  assert list(of(text.replace('blue', 'grey'))) == ['metadata.categories']
  columns = 'metadata.columns'
  assert list(of(text.replace('a,b,', 'b,a,', 1))) == [columns]
  assert list(of(text, '--class_names=cat,dog,elk')) == [
    'num_classes',
    'class_names',
    'metadata.class_names',
  ]
  assert set(of(text, *PETS[1:], '--weight_column=w')) == {
    'inputs',
    'weights',
    columns,
  }


REFUSED = [
  ('', 'data=: is required; '),
  ('--data=no.npz', 'data=no.npz: cannot be read (No such file '),
  ('--data=pets.csv', 'data=pets.csv: did you mean csv:pets.csv?'),
  ('--data=pictures', 'data=pictures: did you mean folder:pictures?'),
  ('--data=images.npz', 'data=images.npz: is not a file of safl-partition '),
  ('--data=csv:no.csv --num_classes=2', 'data=csv:no.csv: there is no such '),
  ('--data=csv:pets.csv', 'class_names=: is required for own data, or else '),
  ('--data=npz:images.npz', 'class_names=: is required for own data, or else '),
  ('--data=csv:pets.csv --class_names=cat', 'class_names=cat: must be the nam'),
  ('--data=csv:pets.csv --class_names=a,b,a', 'class_names=a,b,a: a must occu'),
  ('--data=csv:pets.csv --class_names=a,,b', 'class_names=a,,b: must be the n'),
  (
    '--data=csv:pets.csv --class_names=cat,dog',
    "data=csv:pets.csv: line 4, column label: 'elk' is none of the known ",
  ),
  (
    '--data=npz:images.npz --num_classes=2',
    "data=npz:images.npz: y, row 2: '2' is none of the known labels, 0, 1",
  ),
  (
    '--data=csv:pets.csv --class_names=a,b --num_classes=2',
    'num_classes=2: has no effect with --class_names=a,b; it is for no --cla',
  ),
  (
    '--data=csv:pets.csv --task=regression --class_names=a,b',
    'class_names=a,b: has no effect with --task=regression; ',
  ),
  (
    '--data=client_0.npz --num_classes=3',
    'num_classes=3: has no effect with --data=client_0.npz; it is for ',
  ),
  (
    '--data=npz:images.npz --num_classes=3 --label_column=a',
    'label_column=a: has no effect with --data=npz:images.npz; it is for --da',
  ),
  (
    '--data=csv:houses.csv --task=regression',
    'data=csv:houses.csv: has a column of clients, and several of them; ',
  ),
  (
    '--data=npz:tested.npz --num_classes=3',
    'data=npz:tested.npz: has test examples, which are not used; ',
  ),
  ('--num_classes=3', 'num_classes=3: has no effect with --data=None; it is '),
]


@pytest.mark.parametrize('flags, message', REFUSED)
def test_own_data_that_are_refused(files, flags, message):
  with np.load('images.npz') as archive:
    x, y = archive['x'], archive['y']
    np.savez('tested.npz', x=x, y=y, x_test=x, y_test=y)
  with pytest.raises(errors.InputError) as caught:
    parsed(*flags.split()).load()
  assert str(caught.value).startswith(message)
  assert '\n' not in str(caught.value)
