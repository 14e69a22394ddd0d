"""Attacks on labels, numbers and csv files.

A case is read exactly, or refused by an `InputError` of one line that names
the file and the reason.
"""

import numpy as np
import pytest

from tests.attack import data_files

# --- Labels, as in a file, and the names of the classes of its rows.
SAME = {
  'floats': (['3', '3.0', '3e0', '4'], ['3', '3', '3', '4']),
  'signs': (['+3', '3', '-0', '0', '-1'], ['3', '3', '0', '0', '-1']),
  'beyond floats': (
    ['9007199254740993', '9007199254740992', '9007199254740992.0'],
    ['9007199254740993', '9007199254740992', '9007199254740992'],
  ),
  'long': (['1' + '0' * 5000, '2'], ['1' + '0' * 5000, '2']),
  'powers': (['1e2', '1e300', '100'], ['100', '1' + '0' * 300, '100']),
}
DIFFERENT = {
  'zeros': ['007', '7', '07'],
  'underscores': ['1_0', '10', '1'],
  'other digits': ['3', '\u0663', '\uff13'],
  'hexadecimal': ['0x10', '16'],
  'case': ['cat', 'Cat', 'CAT'],
  'normal forms': ['caf\xe9', 'cafe\u0301'],
  'spaces inside': ['a b', 'ab', 'a  b'],
  'other spaces': ['a', 'a\xa0', '\u3000a'],
  'mixed': ['3', '03', 'three'],
  'booleans': ['True', 'true', '1'],
}


@pytest.mark.parametrize('labels, names', SAME.values(), ids=SAME)
def test_equal_numbers_in_csv(tmp_path, labels, names):
  path = tmp_path / 'a.csv'
  path.write_text('\n'.join(f'{i},{c}' for i, c in enumerate(labels)))
  data = data_files.load(f'csv:{path}')
  assert [data.class_names[c] for c in data.y_test] == names
  assert len(data.class_names) == len(set(names))


@pytest.mark.parametrize('labels', DIFFERENT.values(), ids=DIFFERENT)
@pytest.mark.parametrize('form', ['csv', 'npz'])
def test_different_classes(tmp_path, form, labels):
  path = tmp_path / 'a'
  if form == 'csv':
    path.write_text('\n'.join(f'{i},{c}' for i, c in enumerate(labels)))
  else:
    with path.open('wb') as file:
      np.savez(file, x=np.eye(len(labels)), y=np.array(labels))
  data = data_files.load(f'{form}:{path}')
  assert [data.class_names[c] for c in data.y_test] == labels


@pytest.mark.parametrize(
  'names, order',
  [
    (['1_1', '11'], ['11', '1_1']),
    (['007', '7'], ['007', '7']),
    (['3', '3.0'], ['3', '3.0']),
    (['10', '9'], ['9', '10']),
    (['10', '9', '09'], ['09', '10', '9']),
    (['-1', '0', '-10'], ['-10', '-1', '0']),
    (['a\nb', 'a b'], ['a\nb', 'a b']),
    (['nan', 'inf'], ['inf', 'nan']),
  ],
)
def test_folders_are_names(tmp_path, names, order):
  for i, name in enumerate(names):
    data_files.write_png(tmp_path / name / '1.png', (2, i + 1))
  data = data_files.load(f'folder:{tmp_path}', image_size=(2, 2))
  assert data.class_names == tuple(order)


def test_numbers_of_other_data_do_not_stand_for_digits(tmp_path):
  """Labels 1, 2 are not the classes 01, 02 or the second and third of them."""
  path = tmp_path / 'a.csv'
  path.write_text('5,1\n6,2\n')
  assert "'1' is none of the known labels, 01, 02, 03" in data_files.refusal(
    f'csv:{path}', class_names=('01', '02', '03')
  )


def test_clients_are_text(tmp_path):
  ids = ['1', '01', '1.0', '1_0', 'a', 'A', 'a\xa0', 'caf\xe9', 'cafe\u0301']
  path = tmp_path / 'a.csv'
  rows = [f'{i},{i % 2}, {name} ' for i, name in enumerate(ids)]
  path.write_text('\n'.join(['x,label,client', *rows, *rows, *rows]))
  data = data_files.load(f'csv:{path}', test_fraction=0.1)
  assert set(data.client_ids.tolist()) == set(ids)


# --- csv: contents -> part of the message.
CSV = {
  'underscore': ('1,0\n1_0,1\n', "line 2, column 1: '1_0' is not a finite "),
  'other digits': ('1,0\n\u0663,1\n', 'line 2, column 1: '),
  'hexadecimal': ('1,0\n0x1F,1\n', 'line 2, column 1: '),
  'hexadecimal float': ('1,0\n0x1p3,1\n', 'line 2, column 1: '),
  'nan first': ('nan,cat\n1,dog\n', "line 1, column 1: 'nan' is not a finite"),
  'infinity': ('1,0\n-Infinity,1\n', 'line 2, column 1: '),
  'too large': ('1,0\n1e999,1\n', "line 2, column 1: '1e999' is not a finite"),
  'beyond float32': ('1,0\n3.5e38,1\n', 'line 2, column 1: '),
  'decimal comma': ('a;label\n1,5;0\n', "line 2, column a: '1,5' is not a fi"),
  'decimal comma, no header': (
    '1,5;0\n2,5;1\n',
    'line 1 has as many commas as semicolons; one must separate the columns',
  ),
  'trailing comma': ('a,label,\n1,0,\n', 'line 1: column 3 has no name'),
  'trailing comma, no header': ('1,0,\n', 'line 1, column 3 is empty'),
  'NUL in a name': (b'1,a\n2,a\0\n', 'line 2 has a NUL byte; save the file as'),
  'UTF-16': ('1,a\n2,b\n'.encode('utf-16'), 'line 1 has a NUL byte; save the '),
  'UTF-16 without a mark': ('1,a\n'.encode('utf-16-le'), 'line 1 has a NUL '),
  'UTF-8 with an error': (b'1,a\n2,\xc3(\n', 'line 2 is not UTF-8 text; save'),
  'mixed line ends': ('1,a\n2,b\r3,c\n', 'line 2 has a carriage return inside'),
  'open quote': ('x,label\n1,"a\n2,b\n', 'line 3: unexpected end of data'),
  'open quote in the header': ('"x,label\n1,a\n', 'line 1: '),
  'empty': ('', 'is empty'),
  'only a mark': ('\ufeff', 'is empty'),
  'only a header': ('x,label\n', 'has a header but no examples'),
  'two label columns': (
    'Label,x,label\n1,2,3\n',
    'has columns Label and label; choose one with --label_column',
  ),
  'two client columns': (
    'client,x,Client,label\n1,2,3,4\n',
    'has columns client and Client; choose one with --client_column',
  ),
  'same name': ('x,x,label\n1,2,3\n', 'line 1: column x appears twice'),
  'label nan': ('1,0\n2,nan\n', 'line 2, column 2: nan is not a whole number'),
  'label fraction': ('1,0\n2,.5\n', 'line 2, column 2: .5 is not a whole num'),
  'long line': (
    b'1,0\n' + b'1,' * (1 << 23) + b'1',
    'line 2 is longer than 16,777,216 bytes',
  ),
  'long cell': (b'"1",0\n"' + b'1' * 10**6 + b'",0', 'line 2: field larger th'),
}


@pytest.mark.parametrize('content, message', CSV.values(), ids=CSV)
def test_csv(tmp_path, content, message):
  path = tmp_path / 'a.csv'
  path.write_bytes(content if isinstance(content, bytes) else content.encode())
  assert message in data_files.refusal(f'csv:{path}')


def test_csv_with_many_columns(tmp_path):
  path = tmp_path / 'a.csv'
  path.write_bytes(
    b'\n'.join(b'1,' * 200_000 + label for label in (b'0', b'1'))
  )
  assert data_files.load(f'csv:{path}').x_test.shape == (2, 200_000)


@pytest.mark.parametrize('column', ['01', '1_0', ' 1', '1.0', '-1', '4', 'x'])
def test_columns_are_named_exactly(tmp_path, column):
  path = tmp_path / 'a.csv'
  path.write_text('1,2,3\n4,5,6\n')
  hint = data_files.refusal(f'csv:{path}', label_column=column)
  assert hint == (
    f'has no column {column} (--label_column); its columns are 1, 2, 3'
  )
