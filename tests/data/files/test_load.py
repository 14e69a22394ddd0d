"""Loading data files of any format."""

import os

import numpy as np
import pytest

from safl_tf.data import dataset
from safl_tf.data.files import loader, spec, tabular
from safl_tf.util import errors


def table(labels):
  return tabular.Table(
    np.zeros((len(labels), 1)), list(labels), lambda row: f'row {row}'
  )


@pytest.mark.parametrize(
  'labels, expected',
  [
    (['10', '9', '2', '9.0'], ('2', '9', '10')),
    (['b', 'a', '10', '9'], ('10', '9', 'a', 'b')),
    (['1e2', '-3'], ('-3', '100')),
    (['12345678901234567890', '1'], ('1', '12345678901234567890')),
  ],
)
def test_class_names(labels, expected):
  names = tabular.class_names(table(labels))
  assert names == expected
  y = tabular.encode(table(labels), names)
  assert sorted(set(y.tolist())) == list(range(len(expected)))


def test_known_classes():
  encode = lambda labels, known: tabular.encode(table(labels), known).tolist()
  assert encode(['5', '3.0'], ('3', '4', '5')) == [2, 0]
  assert encode(['cat', 'ant'], ('ant', 'bee', 'cat')) == [2, 0]
  # Numbers stand for names that are none themselves.
  assert encode(['2', '0'], ('ant', 'bee', 'cat')) == [2, 0]
  with pytest.raises(tabular.DataError, match=r"^row 0: '1' is none of "):
    encode(['1'], ('10', '20'))
  with pytest.raises(tabular.DataError, match=r'0, 1, .*, 9, \.\.\.$'):
    encode(['-1'], tuple(map(str, range(20))))


def test_hold_out():
  y = np.repeat([0, 1, 2, 3], [50, 10, 2, 1])
  kept, held = dataset.hold_out(y, 0.2)
  np.testing.assert_array_equal(np.union1d(kept, held), np.arange(63))
  assert len(kept) + len(held) == 63
  assert np.bincount(y[held], minlength=4).tolist() == [10, 2, 0, 0]
  assert (np.diff(kept) > 0).all() and (np.diff(held) > 0).all()
  again = dataset.hold_out(y, 0.2)
  np.testing.assert_array_equal(held, again[1])
  # Not at a fixed distance, which might be that of a client's examples.
  assert len(set(np.diff(held[:10]))) > 2
  assert np.bincount(y[dataset.hold_out(y, 0.9)[0]]).tolist() == [5, 1, 1, 1]
  everything = dataset.hold_out(y, 1)
  assert len(everything[0]) == 0 and len(everything[1]) == 63
  # The same bits in every version.
  held = dataset.hold_out(np.arange(40) % 2, 0.1)[1]
  assert held.tolist() == [16, 23, 29, 36]


@pytest.mark.parametrize(
  'name, canonical',
  [
    ('mnist_sample', 'mnist_sample'),
    ('tfds:mnist', 'mnist'),
    ('tfds:cifar10', 'cifar10'),
    ('tfds:cifar100', 'tfds:cifar100'),
    ('tfds:mnist_corrupted/zigzag:1.0.0', 'tfds:mnist_corrupted/zigzag:1.0.0'),
    ('csv:a.csv', 'csv:a.csv'),
    ('folder:.', 'folder:.'),
    ('csv:~/a.csv', 'csv:{}/a.csv'),
  ],
)
def test_canonical_names(tmp_path, monkeypatch, name, canonical):
  monkeypatch.chdir(tmp_path)
  monkeypatch.setenv('HOME', str(tmp_path))
  (tmp_path / 'a.csv').write_text('a')
  assert spec.check(name) == canonical.format(tmp_path)


@pytest.mark.parametrize(
  'name, message',
  [
    (
      'mnst',
      'did you mean mnist or mnist_sample or fashion_mnist? must be one',
    ),
    (
      'csv',
      'did you mean csv:FILE? must be one of mnist_sample, mnist, fashion_',
    ),
    (
      'cvs:a.csv',
      'must be one of mnist_sample, mnist, fashion_mnist, cifar10, ',
    ),
    ('a.csv', 'did you mean csv:a.csv? must be one of mnist_sample, mnist, '),
    ('dir', 'did you mean folder:dir? must be one of mnist_sample, mnist, '),
    ('csv:no.csv', 'there is no such file'),
    ('csv:', 'there is no such file'),
    ('csv:.', 'is not a regular file'),
    ('npz:no.npz', 'there is no such file'),
    ('npz:a.csv', 'must be a .npz file as numpy.savez writes it'),
    ('folder:no', 'there is no such folder'),
    ('folder:a.csv', 'is not a folder'),
    ('tfds:', "must be tfds: and a data set's name, as tfds:cifar100"),
    ('tfds:a b', "must be tfds: and a data set's name, as tfds:cifar100"),
  ],
)
def test_bad_names(tmp_path, monkeypatch, name, message):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'a.csv').write_text('a')
  (tmp_path / 'dir').mkdir()
  with pytest.raises(errors.InputError) as caught:
    spec.check(name)
  assert str(caught.value).startswith(f'dataset={name}: {message}')


def test_short_names():
  short = spec.short_name
  assert short('mnist') == 'mnist'
  assert short('csv:/data/my flowers.v2.csv') == 'my_flowers.v2'
  assert short('npz:x.npz') == 'x'
  assert short('folder:/data/animals/') == 'animals'
  assert short('folder:.') == os.path.basename(os.getcwd())
  assert short('folder:/') == 'data'
  assert short('tfds:mnist_corrupted/zigzag') == 'mnist_corrupted_zigzag'


def test_options():
  options = spec.options({'dataset': 'csv:a', 'image_size': ' 28, 30'})
  assert options == spec.Options(image_size=(28, 30))
  assert options.test_fraction == 0.2
  flags = {'dataset': 'folder:a', 'test_fraction': 0.5, 'label_column': None}
  assert spec.options(flags, {'class_names': ['a']}) == spec.Options(
    test_fraction=0.5, class_names=('a',)
  )
  with pytest.raises(errors.InputError, match=r'^test_fraction=0: .*\(0, 1\]'):
    spec.Options(test_fraction=0)


@pytest.mark.parametrize(
  'flags, message',
  [
    (
      {'dataset': 'npz:a', 'label_column': 'y'},
      'label_column=y: is for data from csv: only',
    ),
    (
      {'dataset': 'mnist', 'test_fraction': 0.1},
      'test_fraction=0.1: is for data from npz:, csv:, folder: only',
    ),
    (
      {'dataset': 'mnist', 'speech_words': 'commands'},
      'speech_words=commands: is for data from speech_commands only',
    ),
    (
      {'dataset': 'tfds:a', 'image_size': '2,2'},
      'image_size=2,2: is for data from npz:, csv:, folder: only',
    ),
    *(
      (
        {'dataset': 'csv:a', 'image_size': size},
        f'image_size={size}: must be height and width in pixels, as 28,28',
      )
      for size in ('28', '28x28', '0,5', '-1,5', '2.5,5', '')
    ),
  ],
)
def test_bad_options(flags, message):
  with pytest.raises(errors.InputError) as caught:
    spec.options(flags)
  assert str(caught.value) == message


def test_digest_follows_contents(tmp_path):
  path = tmp_path / 'a.csv'
  digest = lambda: loader.inspect(f'csv:{path}', spec.Options())[0]
  path.write_text('a,label\n1,2\n')
  first = digest()
  assert digest() == first
  os.utime(path, ns=(1, 1))
  assert digest() == first
  path.write_text('a,label\n1,3\n')
  assert digest() != first


def test_digest_of_a_folder(tmp_path):
  digest = lambda: loader.inspect(f'folder:{tmp_path}', spec.Options())[0]
  for name in ('ant', 'bee'):
    (tmp_path / name).mkdir()
    (tmp_path / name / '1.png').write_text(name)
  first = digest()
  (tmp_path / 'ant' / '.hidden').write_text('')
  assert digest() == first
  (tmp_path / 'ant' / '1.png').rename(tmp_path / 'ant' / '2.png')
  renamed = digest()
  assert renamed != first
  (tmp_path / 'ant' / '2.png').write_text('cat')
  assert digest() not in (first, renamed)


def test_inspect_checks_names(tmp_path):
  def message(name):
    with pytest.raises(errors.InputError) as caught:
      loader.inspect(name, spec.Options(label_column='kind'))
    return str(caught.value)

  (tmp_path / 'a.csv').write_text('a,b\n1,2\n')
  np.savez(tmp_path / 'a.npz', x=np.zeros(2))
  assert 'has no column kind' in message(f'csv:{tmp_path}/a.csv')
  assert 'there is no array y' in message(f'npz:{tmp_path}/a.npz')
  assert 'no folders of images' in message(f'folder:{tmp_path}')


@pytest.mark.parametrize('form', ['csv', 'npz', 'folder'])
def test_missing_files(tmp_path, form):
  with pytest.raises(errors.InputError) as caught:
    loader.load(f'{form}:{tmp_path}/a', spec.Options())
  assert str(caught.value) == (
    f'dataset={form}:{tmp_path}/a: cannot be read (No such file or directory)'
  )
