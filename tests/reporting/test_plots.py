import io
import math
import os

import numpy as np
import pytest
from PIL import Image

from safl_tf.reporting import plots, theme
from safl_tf.util import choices

OF = plots.Subject('SAFL', 'n = 3', 'safl', 0.1)


def make_history(rounds, every=1):
  """Makes the rows of a run that evaluates every `every` rounds."""
  return [
    {
      'round': t,
      'test_accuracy': None if t % every else 1 - 0.9 / t,
      'test_top5_accuracy': None if t % every else 1 - 0.5 / t,
      'test_loss': None if t % every else 2 / t,
      'train_loss': 1 / t,
      'p': math.exp(-t / 10),
      'kept_local': None if t == 1 else math.exp(-t / 10) + 0.001,
      'selected': 10,
      'uploaded': 10 - t % 4,
      'total_bytes_up': 2_000_000 * t,
    }
    for t in range(1, rounds + 1)
  ]


def make_counts(n, C):
  return np.random.default_rng(0).integers(0, 200, (n, C))


def curves(axes):
  """Maps labels, up to the first line, to (x, y)."""
  return {
    line.get_label().split('\n')[0]: line.get_data()
    for line in axes.lines
    if not line.get_label().startswith('_')
  }


def check_curve(curve, history, column, factor=1.0):
  rows = [row for row in history if row[column] is not None]
  x, y = curve
  np.testing.assert_array_equal(x, [row['round'] for row in rows])
  np.testing.assert_allclose(y, [factor * row[column] for row in rows])


def image_size(path):
  assert path.read_bytes().startswith(b'\x89PNG\r\n\x1a\n')
  with Image.open(path) as image:
    image.load()
    return image.size


@pytest.mark.parametrize(('rounds', 'every'), [(1, 1), (30, 3), (200, 1)])
def test_curves_match_the_history(tmp_path, rounds, every):
  history = make_history(rounds, every)
  path = tmp_path / 'a.png'

  (axes,) = plots.accuracy(history, path, OF).axes
  assert axes.get_title('left') == 'n = 3'
  assert axes.figure.get_suptitle() == 'Test accuracy of SAFL'
  drawn = curves(axes)
  assert drawn.keys() == {'top-1', 'top-5'}
  check_curve(drawn['top-1'], history, 'test_accuracy', 100)
  check_curve(drawn['top-5'], history, 'test_top5_accuracy', 100)

  (axes,) = plots.loss(history, path, OF).axes
  drawn = curves(axes)
  assert drawn.keys() == {'test', 'train'}
  check_curve(drawn['test'], history, 'test_loss')
  check_curve(drawn['train'], history, 'train_loss')

  (axes,) = plots.annealing(history, path, OF).axes
  drawn = curves(axes)
  check_curve(drawn['$p_t$ = exp(-t/L)'], history, 'p')
  if rounds > 1:
    check_curve(drawn['kept'], history, 'kept_local')
    dots = axes.lines[0]
    assert (dots.get_linestyle(), dots.get_marker()) == ('None', 'o')
  else:
    assert drawn.keys() == {'$p_t$ = exp(-t/L)'}


@pytest.mark.parametrize('rounds', [1, 30, 60, 61, 200])
def test_uploads_in_front_of_selected(tmp_path, rounds):
  history = make_history(rounds)
  figure = plots.uploads(history, tmp_path / 'a.png', OF)
  counts, traffic = figure.axes
  handles = [
    handle
    for handle in counts.get_legend_handles_labels()[0]
    if not hasattr(handle, 'get_marker')
  ]
  for handle, label in zip(handles, ['selected', 'uploaded'], strict=True):
    if rounds <= 60:
      heights = [bar.get_height() for bar in handle.patches]
      middles = [bar.get_x() + bar.get_width() / 2 for bar in handle.patches]
    else:
      heights, edges, _ = handle.get_data()
      middles = (edges[1:] + edges[:-1]) / 2
    np.testing.assert_array_equal(heights, [row[label] for row in history])
    np.testing.assert_allclose(middles, np.arange(1, rounds + 1))
  names = [text.get_text().split('\n')[0] for text in counts.texts]
  assert sorted(names) == ['selected', 'uploaded']
  check_curve(curves(traffic)['total'], history, 'total_bytes_up', 1e-6)
  _, without_gate = curves(traffic)['if all']
  sent = sum(row['uploaded'] for row in history)
  wanted = 2e-6 * 1e6 * rounds * 10 * rounds / sent
  assert without_gate[-1] == pytest.approx(wanted)
  assert traffic.get_ylim()[0] == 0


def test_curves_end_in_their_names_and_last_values(tmp_path):
  history = make_history(9, every=2)
  (axes,) = plots.accuracy(history, tmp_path / 'a.png', OF).axes
  texts = {text.get_text() for text in axes.texts}
  assert texts == {'top-5\n93.75 %', 'top-1\n88.75 %', 'guessing, 10 %'}
  assert axes.get_legend() is None


def test_single_point_is_marked_at_its_round(tmp_path):
  (axes,) = plots.accuracy(make_history(1), tmp_path / 'a.png', OF).axes
  drawn = [line for line in axes.lines if line.get_label()[0] != '_']
  assert [line.get_marker() for line in drawn] == ['o', 'o']
  low, high = axes.get_xlim()
  assert [tick for tick in axes.get_xticks() if low < tick < high] == [1]


@pytest.mark.parametrize('name', ['accuracy', 'loss', 'annealing', 'uploads'])
def test_no_values(tmp_path, name):
  for history in ([], [{'round': 1}, {'round': 2}]):
    figure = getattr(plots, name)(history, tmp_path / 'a.png', OF)
    for axes in figure.axes:
      assert [text.get_text() for text in axes.texts] == ['no values']


@pytest.mark.parametrize(
  ('n', 'C', 'annotated', 'named'),
  [(5, 10, True, True), (30, 12, True, True), (31, 62, False, False),
   (1000, 10, False, True)],
)  # fmt: skip
def test_partition(tmp_path, n, C, annotated, named):
  counts = make_counts(n, C)
  names = [f'label{c}' for c in range(C)]
  path = tmp_path / 'a.png'
  figure = plots.partition(counts, names, path, OF)
  heat, sizes, bar = figure.axes
  np.testing.assert_array_equal(heat.images[0].get_array(), counts)
  (steps,) = sizes.patches
  values, edges, _ = steps.get_data()
  np.testing.assert_array_equal(values, counts.sum(1))
  np.testing.assert_allclose(edges, np.arange(n + 1) - 0.5, atol=1e-9)
  assert sizes.get_ylim() == heat.get_ylim() == (n - 0.5, -0.5)
  assert bar.get_ylabel() == 'examples of a label'
  cells = {text.get_position(): text.get_text() for text in heat.texts}
  if annotated:
    expected = {(c, k): str(m) for (k, c), m in np.ndenumerate(counts)}
    assert cells == expected
  else:
    assert cells == {}
  ticks = [tick.get_text() for tick in heat.get_xticklabels()]
  assert (ticks == names) == named
  width, height = image_size(path)
  assert 400 < width < 2500
  assert 300 < height < 2000
  assert height >= n  # a row of pixels for every client


def test_partition_samples_many_clients(tmp_path):
  counts = make_counts(99_901, 3)  # 0, 100, 200, ...
  figure = plots.partition(counts, ['a', 'b', 'c'], tmp_path / 'a.png', '')
  heat, sizes, _ = figure.axes
  np.testing.assert_array_equal(heat.images[0].get_array(), counts[::100])
  values, edges, _ = sizes.patches[0].get_data()
  np.testing.assert_array_equal(values, counts[::100].sum(1))
  assert (edges[0], edges[-1]) == (-0.5, 99_900.5)
  assert heat.get_ylim() == sizes.get_ylim() == (99_900.5, -0.5)
  assert heat.get_ylabel() == 'client (1,000 of 99,901 drawn)'
  assert max(image_size(tmp_path / 'a.png')) < 2000


def test_partition_without_examples(tmp_path):
  plots.partition(np.zeros((3, 2), int), ['a', 'b'], tmp_path / 'a.png', '')
  assert image_size(tmp_path / 'a.png')


def test_write_all_replaces_files(tmp_path):
  names = list('0123456789')
  expected = {'accuracy', 'loss', 'annealing', 'uploads', 'partition'}
  before = {}
  for rounds in (1, 3):
    history = make_history(rounds)
    plots.write_all(tmp_path, history, make_counts(rounds, 10), names, OF)
    written = os.listdir(tmp_path / 'plots')
    assert set(written) == {f'{name}.png' for name in expected}
    for name in written:
      path = tmp_path / 'plots' / name
      assert min(image_size(path)) > 300
      assert path.read_bytes() != before.get(name)
      before[name] = path.read_bytes()


def test_rc_params_are_unchanged(tmp_path):
  import matplotlib

  before = dict(matplotlib.rcParams)
  buffer = io.BytesIO()
  figure = plots.loss(make_history(3), tmp_path / 'a.png', OF)
  assert dict(matplotlib.rcParams) == before
  figure.savefig(buffer, format='png')
  assert buffer.getvalue().startswith(b'\x89PNG')


def test_curves_write_nothing_and_draw_what_there_is(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  history = [
    {'round': 1, 'test_accuracy': None, 'test_loss': 2.0, 'test_mae': 0.4},
    {'round': 2, 'test_accuracy': None, 'test_loss': 1.0, 'test_mae': None},
  ]
  figure = plots.curves(history, OF)
  assert [axes.get_ylabel() for axes in figure.axes] == ['loss', 'test mae']
  assert figure.get_suptitle() == 'Metrics of SAFL'
  drawn = [
    line.get_ydata().tolist() for axes in figure.axes for line in axes.lines
  ]
  assert drawn == [[2.0, 1.0], [0.4]]
  assert os.listdir(tmp_path) == []
  assert len(plots.curves([], OF).axes) == 1


def test_a_task_without_accuracy_and_classes(tmp_path):
  history = [
    {**row, 'test_accuracy': None, 'test_auc': row['round'] / 9}
    for row in make_history(3)
  ]
  sizes = np.array([3, 1, 2])
  plots.write_all(tmp_path, history, None, None, OF, ('svg',), sizes)
  names = {'loss', 'annealing', 'uploads', 'auc', 'partition'}
  written = set(os.listdir(tmp_path / 'plots'))
  assert written == {f'{name}.svg' for name in names}
  (axes,) = plots.client_sizes(sizes, tmp_path / 'a.png', OF).axes
  heights, _, _ = axes.patches[0].get_data()
  assert heights.tolist() == [3, 2, 1]


def test_client_evaluation(tmp_path):
  models = {'global': 0.5, 'own': 0.6, 'personalized': 0.7}
  spread = {'p5': -0.2, 'p25': -0.1, 'p50': 0, 'p75': 0.1, 'p95': 0.2}
  history = make_history(6)
  for row in history[1::2]:
    for model, base in models.items():
      for name, off in spread.items():
        row[f'client_{model}_accuracy_{name}'] = base + off + row['round'] / 100
        row[f'client_{model}_loss_{name}'] = base + off
  names, counts = list('0123456789'), make_counts(4, 10)
  plots.write_all(tmp_path, history, counts, names, OF)
  assert image_size(tmp_path / 'plots' / 'clients.png')
  figure = plots.client_evaluation(history, tmp_path / 'a.png', OF)
  accuracy, loss = figure.axes
  assert accuracy.get_ylabel() == 'accuracy of clients (%)'
  assert loss.get_ylabel() == 'loss of clients'
  drawn = curves(accuracy)
  assert list(drawn) == list(models)
  x, y = drawn['own']
  assert x.tolist() == [2, 4, 6]
  np.testing.assert_allclose(y, [62, 64, 66])
  assert len({line.get_color() for line in accuracy.lines}) == 3
  wide, narrow = accuracy.collections[:2]
  heights = [
    np.ptp(band.get_paths()[0].vertices[:, 1]) for band in (wide, narrow)
  ]
  assert heights[0] > heights[1]


@pytest.mark.parametrize('suffix, start', [('pdf', b'%PDF'), ('svg', b'<?xml')])
def test_formats(tmp_path, suffix, start):
  paths = plots.paths(tmp_path, 'a', [suffix, 'png'])
  plots.loss(make_history(3), paths, OF)
  assert paths[0].read_bytes().startswith(start)
  assert image_size(paths[1])
  first = paths[0].read_bytes()
  plots.loss(make_history(3), paths[0], OF)
  assert paths[0].read_bytes() == first


def test_pictures_that_say_nothing_are_not_drawn(tmp_path):
  """All clients upload, and keep nothing of their own models."""
  history = [
    {**row, 'uploaded': 10, 'kept_local': 0.0, 'p': 0.0}
    for row in make_history(3)
  ]
  plots.write_all(tmp_path, history, make_counts(4, 2), ['a', 'b'], OF)
  written = set(os.listdir(tmp_path / 'plots'))
  assert written == {'accuracy.png', 'loss.png', 'partition.png'}


def test_dark_files(tmp_path):
  paths = plots.paths(tmp_path, 'a', choices.FIGURES)
  figure = plots.accuracy(make_history(3), paths, OF)
  assert figure.get_facecolor() == (1, 1, 1, 1)
  corners = {}
  for path in paths:
    if path.suffix == '.png':
      with Image.open(path) as image:
        corners[path.name] = image.convert('L').getpixel((0, 0))
  assert corners['a.png'] == 255 and corners['a.dark.png'] < 40
  dark, light = ((tmp_path / f'a{x}.svg').read_text() for x in ('.dark', ''))
  assert theme.DARK['safl'].lower() in dark
  assert theme.LIGHT['safl'].lower() in light


def test_subject():
  flags = {'num_clients': 20, 'epsilon': 0.3, 'temperature': 80.0}
  of = plots.subject('extended_safl', flags, 30)
  assert of.name == 'Extended SAFL' and of.settings == 'n = 20, ε = 0.3, L = 80'
  assert of.guess == 1 / 30 and of.look.color == 'extended_safl'
  assert plots.subject('own', {}, None).guess is None
