"""Reading csv:FILE, valid and invalid."""

import numpy as np
import pytest

from safl_tf.data import registry
from safl_tf.data.files import csv, spec
from safl_tf.util import errors

FLOWERS = """sepal,petal,species
5.1,0.2,setosa
4.9,0.3,setosa
4.7,0.2,setosa
7.0,1.4,versicolor
6.4,1.5,versicolor
6.9,1.6,versicolor
"""


def write(tmp_path, text):
  path = tmp_path / 'data.csv'
  path.write_bytes(text if isinstance(text, bytes) else text.encode())
  return f'csv:{path}'


def load(tmp_path, text, **options):
  options = spec.Options(**{'test_fraction': 1, **options})
  return registry.load(write(tmp_path, text), None, options)


def test_names_and_floats(tmp_path):
  data = load(tmp_path, FLOWERS)
  assert data.name == 'data'
  assert data.x_test.dtype == np.float32
  assert data.x_test.shape == (6, 2)
  np.testing.assert_allclose(data.x_test[0], [5.1, 0.2], rtol=1e-6)
  assert data.class_names == ('setosa', 'versicolor')
  assert data.y_test.tolist() == [0, 0, 0, 1, 1, 1]
  assert data.y_test.dtype == np.int32
  assert data.client_ids is None
  assert data.input_shape == (2,)


@pytest.mark.parametrize(
  'text',
  [
    '1,2,7\n3,4,9\n',
    '\ufeff1,2,7\n3,4,9\n',
    '1;2;7\r\n3;4;9\r\n',
    '1\t2\t7\n\n3\t4\t9',
    '\n1, 2, 7.0\n3, 4, 9\n\n',
    'a,b,c\n1,2,7\n3,4,9\n',
    '\ufeffa,b,c\n1,2,7\n3,4,9\n',
    'label,a,b\n7,1,2\n9,3,4\n',
    'a,Target,b\n1,7,2\n3,9,4\n',
    'a,y,b\n"1","7",2\n3,9,4\n',
    'b,c,label\n1,2,7\n3,4,9\n',
    'b,c,label\n1,2,"7"\n3,4,"9"\n',
    '1,2,label\n1,2,7\n3,4,9\n',  # a header, as there is a label
  ],
)
def test_layouts(tmp_path, text):
  data = load(tmp_path, text)
  np.testing.assert_array_equal(data.x_test, [[1, 2], [3, 4]])
  assert data.x_test.dtype == np.float32
  assert data.class_names == ('7', '9')
  assert data.y_test.tolist() == [0, 1]


def test_requested_columns(tmp_path):
  text = 'who,a,kind,b\nann,1,9,2\nbob,3,7,4\nann,5,7,6\n'
  data = load(
    tmp_path, text, label_column='kind', client_column='who', test_fraction=0.5
  )
  assert data.class_names == ('7', '9')
  assert data.x_train.shape[1:] == (2,)
  table = csv.read(
    str(tmp_path / 'data.csv'),
    spec.Options(label_column='kind', client_column='who'),
  )
  assert table.client_ids.tolist() == ['ann', 'bob', 'ann']
  np.testing.assert_array_equal(table.x, [[1, 2], [3, 4], [5, 6]])


def test_columns_by_number(tmp_path):
  data = load(tmp_path, '2,0.5,1\n3,0.7,1\n', label_column='1')
  np.testing.assert_allclose(data.x_test, [[0.5, 1], [0.7, 1]])
  assert data.class_names == ('2', '3')


def test_default_client_column_is_split_with_the_examples(tmp_path):
  rows = [f'{i},{i % 2},dev{i % 5}' for i in range(40)]
  text = '\n'.join(['x,label,Client', *rows])
  data = load(tmp_path, text, test_fraction=0.25)
  assert len(data.x_train) == len(data.client_ids) == 30
  expected = [f'dev{int(x) % 5}' for x in data.x_train[:, 0]]
  assert data.client_ids.tolist() == expected


def test_label_is_the_last_column_before_the_client(tmp_path):
  data = load(tmp_path, 'a,b,species,client\n1,2,ant,x\n3,4,bee,y\n')
  assert data.class_names == ('ant', 'bee')
  np.testing.assert_array_equal(data.x_test, [[1, 2], [3, 4]])


def test_y_may_be_a_class_name(tmp_path):
  data = load(tmp_path, '1,2,y\n3,4,n\n')
  assert data.class_names == ('n', 'y')
  assert len(data.y_test) == 2


def test_pixels_become_images(tmp_path):
  rows = [[0, 255, 7, 9, 0, 1, 0], [1, 2, 3, 4, 5, 6, 1]]
  text = '\n'.join(','.join(map(str, row)) for row in rows)
  data = load(tmp_path, text, image_size=(2, 3))
  assert data.x_test.dtype == np.uint8
  assert data.x_test.shape == (2, 2, 3, 1)
  assert data.x_test[0, 1, 0, 0] == 9
  colour = load(tmp_path, text, image_size=(1, 2))
  assert colour.x_test.shape == (2, 1, 2, 3)


@pytest.mark.parametrize(
  'row', ['0,1,1,0', '0.5,200,0,1', '-1,7,2,3', '0,256,1,1']
)
def test_other_numbers_become_float_images(tmp_path, row):
  data = load(tmp_path, f'{row},a\n0,1,0,1,b\n', image_size=(2, 2))
  assert data.x_test.dtype == np.float32
  np.testing.assert_allclose(
    data.x_test[0].ravel(), [float(cell) for cell in row.split(',')]
  )


@pytest.mark.parametrize('block', [1, 30, 1 << 22])
def test_blocks(tmp_path, monkeypatch, block):
  """Values do not depend on the size of the blocks and match Python's."""
  monkeypatch.setattr(csv, '_BLOCK', block)
  rng = np.random.default_rng(0)
  cells = rng.integers(0, 1000, (60, 4)).astype(object)
  cells[20:40, 1] = rng.normal(size=20)
  cells[45, 2] = 12345
  cells[50, 0] = 9007199254740993
  cells[:, 3] %= 3
  text = '\n'.join(','.join(map(str, row)) for row in cells)
  data = load(tmp_path, text)
  np.testing.assert_array_equal(
    data.x_test, cells[:, :3].astype(np.float64).astype(np.float32)
  )
  assert data.y_test.tolist() == cells[:, 3].tolist()


@pytest.mark.parametrize('block', [1, 4, 8, 1 << 22])
@pytest.mark.parametrize('line', [2, 3, 5])
@pytest.mark.parametrize('extra', [',9', ',', ',9,9'])
def test_long_lines(tmp_path, monkeypatch, block, line, extra):
  monkeypatch.setattr(csv, '_BLOCK', block)
  lines = ['a,b,c,label'] + [f'{i},{i},{i},{i % 2}' for i in range(5)]
  lines[line - 1] += extra
  with pytest.raises(errors.InputError, match=f'line {line} has'):
    load(tmp_path, '\n'.join(lines))


def test_client_ids_keep_leading_zeros(tmp_path):
  text = 'x,label,client\n1,0,007\n2,1,7\n'
  table = csv.read(write(tmp_path, text).removeprefix('csv:'), spec.Options())
  assert table.client_ids.tolist() == ['007', '7']


INVALID = {
  'empty': ('', 'is empty'),
  'blank': ('\n \n\n', 'is empty'),
  'header only': ('a,b,label\n', 'has a header but no examples'),
  'text': (
    FLOWERS.replace('1.4', 'much'),
    "line 5, column petal: 'much' is not a finite number",
  ),
  'text among integers': ('1,2,0\n3,4,1\n5,x,0\n', 'line 3, column 2: '),
  'nan': (FLOWERS.replace('4.9', 'nan'), 'line 3, column sepal: '),
  'too large': (FLOWERS.replace('4.9', '1e39'), 'line 3, column sepal: '),
  'number among words': (
    'a,label\nred,0\n5,1\n',
    "line 3, column a: '5' is not like 'red' above; if both are categories, "
    'give --categorical=a',
  ),
  'many words': (
    'a,label\n' + ''.join(f'w{i},{i % 2}\n' for i in range(101)),
    'column a has 101 categories, more than 100; number or group them, or ',
  ),
  'empty cell': (FLOWERS.replace('7.0', ''), 'line 5, column sepal is empty'),
  'empty label': (
    FLOWERS.replace('0.3,setosa', '0.3,'),
    'line 3, column species is empty',
  ),
  'ragged': (
    FLOWERS.replace('6.4,', ''),
    'line 6 has 2 columns, but line 1 has 3',
  ),
  'ragged integers': ('1,2,0\n\n3,4,1,1\n', 'line 3 has 4 columns'),
  'all rows longer than the header': (
    'a,b,label\n1,2,3,0\n2,3,4,1\n',
    'line 2 has 4 columns, but line 1 has 3',
  ),
  'unclosed quote': ('a,label\n"1,0\n2,1\n', 'line 3: '),
  'text after a quote': ('a,label\n1,0\n"2"3,1\n', 'line 3: '),
  'carriage returns': (
    'a,label\r1,0\r2,1\r',
    'line 1 has a carriage return inside; end lines with a newline',
  ),
  'NUL': (
    b'a,label\n1,0\n2\x003,1\n',
    'line 3 has a NUL byte; save the file as UTF-8',
  ),
  'encoding': (
    b'a,label\n1,caf\n2,th\n3,caf\xe9\n',
    'line 4 is not UTF-8 text; save the file as UTF-8',
  ),
  'no label column': (
    FLOWERS,
    'has no column kind (--label_column); its columns are sepal, petal, '
    'species',
    {'label_column': 'kind'},
  ),
  'no header': (
    '1,2,0\n3,4,1\n',
    'has no column kind (--label_column); its columns are 1, 2, 3',
    {'label_column': 'kind'},
  ),
  'no client column': (
    FLOWERS,
    'has no column who (--client_column); ',
    {'client_column': 'who'},
  ),
  'one column': (
    'a\n1\n',
    'line 1: columns a; must be a label and at least one feature, separated by '
    'commas, semicolons or tabs',
  ),
  'client alone': ('client\n1\n', 'line 1: columns client; '),
  'label and client': (
    'a,b,label\n1,2,3\n',
    'line 1: columns a, b, label; ',
    {'client_column': 'label'},
  ),
  'unnamed column': (',a,label\n0,1,2\n', 'line 1: column 1 has no name'),
  'repeated name': ('a,b,a,label\n0,1,2,3\n', 'line 1: column a appears twice'),
  'label with a fraction': (
    'a,target\n1,2\n2,0.5\n3,1\n',
    'line 3, column target: 0.5 is not a whole number; labels must be whole '
    'numbers or names',
  ),
  'one class': (
    'a,label\n1,cat\n2,cat\n',
    'line 2, column label: all labels are cat; there must be at least two',
  ),
  'unknown class': (
    FLOWERS,
    "line 5, column species: 'versicolor' is none of the known labels, setosa, "
    'virginica',
    {'class_names': ('setosa', 'virginica')},
  ),
  'image size': (
    FLOWERS,
    'rows of shape [2] do not fit --image_size=3,3',
    {'image_size': (3, 3)},
  ),
}


@pytest.mark.parametrize('case', INVALID.values(), ids=INVALID)
def test_invalid(tmp_path, case):
  text, message, *options = case
  with pytest.raises(errors.InputError) as caught:
    load(tmp_path, text, **(options[0] if options else {}))
  name = f'csv:{tmp_path}/data.csv'
  assert str(caught.value).startswith(f'dataset={name}: {message}')


def test_too_few_to_hold_out(tmp_path):
  with pytest.raises(errors.InputError) as caught:
    load(tmp_path, 'a,label\n1,x\n2,y\n3,z\n', test_fraction=0.5)
  assert caught.value.argument == 'test_fraction'


COLOURS = (
  'a,colour,size,label\n1,red,10,x\n2,blue,9,y\n3,red,10,y\n4,"b, c",9,x\n'
)


def test_categories(tmp_path):
  data = load(tmp_path, COLOURS, categorical=('size',))
  assert data.categories == {
    'colour': ['b, c', 'blue', 'red'],
    'size': ['10', '9'],
  }
  np.testing.assert_array_equal(
    data.x_test,
    [
      [1, 0, 0, 1, 1, 0],
      [2, 0, 1, 0, 0, 1],
      [3, 0, 0, 1, 1, 0],
      [4, 1, 0, 0, 0, 1],
    ],
  )
  other = load(
    tmp_path, 'a,colour,label\n5,blue,x\n', **known(colour=['blue', 'red'])
  )
  assert other.x_test.tolist() == [[5, 1, 0]]
  message = "line 2, column colour: 'green' is none of the known categories, re"
  with pytest.raises(errors.InputError, match=message):
    load(tmp_path, 'a,colour,label\n5,green,x\n', **known(colour=['red']))
  with pytest.raises(errors.InputError, match='has no column colour'):
    load(tmp_path, 'a,label\n5,x\n', **known(colour=['red']))


def known(**categories):
  return {'categories': categories, 'class_names': ('x', 'y')}


NUMBERS = 'a,p,q,w\n1,0,1,2\n2,1,1,0\n3,0,0,1\n'


def test_other_tasks(tmp_path):
  data = load(
    tmp_path, NUMBERS, task='regression', label_column='q,p', weight_column='w'
  )
  assert data.y_test.tolist() == [[1, 0], [1, 1], [0, 0]]
  assert data.y_test.dtype == np.float32 and data.num_classes is None
  assert data.w_test.tolist() == [2, 0, 1] and data.class_names == ()
  assert data.x_test.tolist() == [[1], [2], [3]]
  one = load(tmp_path, NUMBERS, task='regression')
  assert one.y_test.tolist() == [2, 0, 1] and one.num_outputs == 1
  many = load(tmp_path, NUMBERS, task='multi_label', label_column='p,q')
  assert many.y_test.tolist() == [[0, 1], [1, 1], [0, 0]]
  assert many.y_test.dtype == np.int32 and many.class_names == ('p', 'q')
  assert many.x_test.shape == (3, 2)


@pytest.mark.parametrize(
  'text, options, message',
  [
    (NUMBERS, {'label_column': 'a,q'}, 'line 3, column a: 2 is not 0 or 1'),
    (NUMBERS, {'label_column': 'q'}, r'has labels of shape \[3, 1\]; .* sever'),
    (NUMBERS, {'label_column': 'p,r'}, 'has no column r '),
    (NUMBERS, {'label_column': 'p,p'}, 'line 1: .* each for one purpose'),
    (NUMBERS, {'weight_column': 'w'}, 'line 1: .* each for one purpose'),
    (
      NUMBERS.replace('3,0,0,1', '3,0,0,-1'),
      {'label_column': 'p,q', 'weight_column': 'w'},
      'line 4, column w: a weight must not be below 0',
    ),
    (
      NUMBERS.replace('3,0,0,1', '3,0,many,1'),
      {'label_column': 'p,q'},
      "line 4, column q: 'many' is not a finite number",
    ),
    (
      NUMBERS,
      {'label_column': 'p,q', 'class_names': ('p', 'r')},
      'has labels p, q; must have those of the model, p, r',
    ),
  ],
)
def test_refused_tasks(tmp_path, text, options, message):
  with pytest.raises(errors.InputError, match=message):
    load(tmp_path, text, **{'task': 'multi_label', **options})


def test_targets_are_held_out(tmp_path):
  text = '\n'.join(f'{i},{i / 2}' for i in range(100))
  data = load(tmp_path, text, task='regression', test_fraction=0.25)
  assert (len(data.y_train), len(data.y_test)) == (75, 25)
  np.testing.assert_array_equal(data.y_train, data.x_train[:, 0] / 2)
