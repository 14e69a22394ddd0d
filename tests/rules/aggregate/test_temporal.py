import dataclasses
import io
import math
import tracemalloc

import numpy as np
import pytest

import safl_tf
from safl_tf.core import algorithm as algorithm_lib
from safl_tf.core import flat_model, layout
from safl_tf.models import lenet5, light_vgg
from safl_tf.rules import aggregate
from safl_tf.util import errors
from tests import memories, tiny

A = math.e / 2
DEEP_ROUNDS = [1, 12, 13, 14, 15, 16, 27, 28, 29, 30, 31]


def make_layout(*tensors):
  """Of (path, shape), trained unless the path has a star at its end."""
  start, result = 0, []
  for path, shape in tensors:
    trainable = not path.endswith('*')
    result.append(layout.Tensor(path.rstrip('*'), shape, start, trainable))
    start += result[-1].size
  return layout.Layout(tuple(result))


SMALL = make_layout(
  ('net/conv/kernel', (2, 2, 1, 3)),
  ('net/conv/bias', (3,)),
  ('net/dense/kernel', (3, 4)),
  ('net/dense/bias', (4,)),
  ('net/dense_1/kernel', (4, 2)),
  ('net/norm/moving_mean*', (3,)),
)
SMALL_DEEP = np.arange(SMALL.size)
SMALL_DEEP = (SMALL_DEEP >= 15) & (SMALL_DEEP < 39)


def updates(t, ids, z, m):
  arrays = {'z': list(z)}
  return aggregate.Updates(t, np.asarray(ids), arrays, np.asarray(m), 99)


def rounds(last, clients=8, size=SMALL.size, dtype=np.float32, seed=0):
  """Uploads of some clients, never of client 5, in every round."""
  rng = np.random.default_rng(seed)
  sizes = rng.integers(10, 90, clients)
  others = np.delete(np.arange(clients), 5)
  for t in range(1, last + 1):
    ids = rng.permutation(others)[: rng.integers(1, 4)]
    z = rng.normal(size=(len(ids), size)).astype(dtype)
    yield updates(t, ids, z, sizes[ids])


def run(rule, received, model_layout=SMALL):
  """All z_bar; memory that is written to would raise."""
  memory, z_bar, result = rule.init(model_layout), None, []
  for update in received:
    memories.freeze(memory)
    z_bar, memory = rule.apply(memory, update, z_bar)
    z_bar.setflags(write=False)
    result.append(z_bar)
  return result, memory


def by_hand(received, base=A, deep=None, deep_rounds=()):
  """The same with a dict of what each client sent last, part by part."""
  deep = np.zeros(SMALL.size, bool) if deep is None else deep
  places = {'shallow': ~deep, 'deep': deep}
  sent = {'shallow': {}, 'deep': {}}
  z_bar, result = np.zeros(SMALL.size), []
  for update in received:
    t, z_bar = update.t, z_bar.copy()
    for part in ['shallow', 'deep'] if t in deep_rounds else ['shallow']:
      place = places[part]
      rows = zip(update.ids, update.z, update.m, strict=True)
      for k, model, size in rows:
        sent[part][int(k)] = (t, size, model[place].astype(np.float64))
      values = list(sent[part].values())
      raw = [size * base ** -(t - tau) for tau, size, _ in values]
      models = np.stack([model for _, _, model in values])
      z_bar[place] = raw @ models / sum(raw)
    result.append(z_bar)
  return result


def test_powers_of_the_base():
  eta = aggregate.temporal_weights(np.ones(6), np.arange(6))
  expected = [1, 0.735759, 0.541341, 0.398297, 0.29305, 0.215614]
  np.testing.assert_allclose(eta / eta[0], expected, rtol=0, atol=5e-7)
  np.testing.assert_allclose(eta / eta[0], A ** -np.arange(6.0), rtol=1e-14)


def test_vector():
  eta = aggregate.temporal_weights([600, 600, 300], 10 - np.array([10, 9, 7]))
  expected = [0.516821, 0.380255, 0.102924]
  np.testing.assert_allclose(eta, expected, rtol=0, atol=5e-7)
  plain = 0.4 * eta / eta[0]  # m_k/m a^-age, as the formula is printed
  expected = [0.4, 0.294304, 0.079659]
  np.testing.assert_allclose(plain, expected, rtol=0, atol=5e-7)
  assert plain.sum() == pytest.approx(0.773963, abs=5e-7)


@pytest.mark.parametrize('age', [0, 3, 5000])
def test_equal_ages_are_fed_avg(age):
  eta = aggregate.temporal_weights([600, 600, 300], np.full(3, age))
  np.testing.assert_array_equal(eta, [0.4, 0.4, 0.2])


def test_base_1_is_fed_avg():
  eta = aggregate.temporal_weights([600, 600, 300], [0, 1, 3], base=1)
  np.testing.assert_array_equal(eta, [0.4, 0.4, 0.2])


@pytest.mark.parametrize('rounds_later', [1, 7, 5000])
def test_ages_that_grow_alike_change_nothing(rounds_later):
  m, age = [600, 600, 300, 5], np.array([0, 1, 3, 200])
  np.testing.assert_array_equal(
    aggregate.temporal_weights(m, age + rounds_later),
    aggregate.temporal_weights(m, age),
  )


def test_very_old_models_keep_some_weight():
  eta = aggregate.temporal_weights([1, 1], [0, 200])
  assert eta[1] == pytest.approx(2.7e-27, rel=0.02)


def test_weights_sum_to_one():
  eta = aggregate.temporal_weights([3, 5, 7], [0, 2, 11])
  assert eta.sum() == pytest.approx(1, abs=1e-15)


@pytest.mark.parametrize('base', [1.0, A, 3.0])
@pytest.mark.parametrize('dtype', [np.float32, np.float64])
def test_is_what_the_formula_says(base, dtype):
  received = list(rounds(40, dtype=dtype))
  result, memory = run(aggregate.temporal(base), received)
  precision = 4 * np.finfo(dtype).eps
  for got, expected in zip(result, by_hand(received, base), strict=True):
    assert got.dtype == dtype
    np.testing.assert_allclose(got, expected, rtol=0, atol=precision)
  assert memory['models'].to_arrays()['arrays'].dtype == dtype


@pytest.mark.parametrize('dtype', [np.float32, np.float64])
def test_layer_by_layer_is_what_the_formula_says(dtype):
  received = list(rounds(31, dtype=dtype))
  result, _ = run(aggregate.temporal(layerwise=True), received)
  expected = by_hand(received, A, SMALL_DEEP, DEEP_ROUNDS)
  precision = 4 * np.finfo(dtype).eps
  for got, wanted in zip(result, expected, strict=True):
    np.testing.assert_allclose(got, wanted, rtol=0, atol=precision)


def test_everybody_every_round_is_fed_avg():
  rng = np.random.default_rng(1)
  plain, m = aggregate.by_size(), rng.integers(10, 90, 6)
  received = [
    updates(t, range(6), rng.normal(size=(6, SMALL.size)), m)
    for t in range(1, 6)
  ]
  result, _ = run(aggregate.temporal(), received)
  for got, update in zip(result, received, strict=True):
    expected = plain.apply({}, update, None).z_bar
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-15)


@pytest.mark.parametrize('layerwise', [False, True])
def test_shifted_by_whole_loops_nothing_changes(layerwise):
  rule = aggregate.temporal(layerwise=layerwise)
  received = list(rounds(20))
  later = [update._replace(t=update.t + 30) for update in received]
  result, again = run(rule, received)[0], run(rule, later)[0]
  np.testing.assert_array_equal(result, again)


def test_deep_rounds():
  rule = aggregate.temporal(layerwise=True)
  uploads = {t: rule.uploads(SMALL, t) for t in range(1, 32)}
  whole = [t for t, count in uploads.items() if count == SMALL.size]
  assert whole == DEEP_ROUNDS
  assert {uploads[t] for t in uploads if t not in whole} == {15 + 3}


@pytest.mark.parametrize(
  'loop, deep_rounds, expected',
  [
    (4, 2, [1, 4, 5, 8, 9]),
    (4, 1, [1, 5, 9]),
    (3, 3, list(range(1, 10))),
    (1, 1, list(range(1, 10))),
  ],
)
def test_other_loops(loop, deep_rounds, expected):
  rule = aggregate.temporal(layerwise=True, loop=loop, deep_rounds=deep_rounds)
  uploads = [rule.uploads(SMALL, t) for t in range(1, 10)]
  assert [t for t, u in enumerate(uploads, 1) if u == SMALL.size] == expected


def test_deep_tensors_stay_in_other_rounds():
  result, _ = run(aggregate.temporal(layerwise=True), rounds(31))
  for t in range(2, 32):
    old, new = result[t - 2], result[t - 1]
    stays = new[SMALL_DEEP].tobytes() == old[SMALL_DEEP].tobytes()
    assert stays == (t not in DEEP_ROUNDS)
    assert (new[~SMALL_DEEP] != old[~SMALL_DEEP]).all()


def test_whole_models_are_uploaded_otherwise():
  rule = aggregate.temporal()
  assert {rule.uploads(SMALL, t) for t in range(1, 32)} == {SMALL.size}
  result, _ = run(rule, rounds(3))
  assert (result[1] != result[2]).all()


def test_a_deep_part_that_never_came_has_no_weight():
  rng = np.random.default_rng(3)
  rule = aggregate.temporal(layerwise=True)
  z = rng.normal(size=(6, SMALL.size))
  received = [
    updates(1, [0], z[:1], [10]),
    updates(2, [1], z[1:2], [20]),  # shallow
    updates(12, [0], z[2:3], [10]),  # deep, without client 1
    updates(13, [1], z[3:4], [20]),  # deep, with it
  ]
  (_, second, third, fourth), memory = run(rule, received)
  np.testing.assert_array_equal(second[SMALL_DEEP], z[0, SMALL_DEEP])
  np.testing.assert_array_equal(third[SMALL_DEEP], z[2, SMALL_DEEP])
  eta = np.array([10 / A, 20]) / (10 / A + 20)
  np.testing.assert_allclose(fourth, eta @ z[2:4], rtol=1e-13)
  eta = np.array([10, 20 * A**-10]) / (10 + 20 * A**-10)
  shallow = eta @ z[[2, 1]]
  np.testing.assert_allclose(
    third[~SMALL_DEEP], shallow[~SMALL_DEEP], rtol=1e-13
  )
  np.testing.assert_array_equal(memory['tau_s'], [12, 13])


def test_the_first_model_is_taken_whole():
  """If round 1 brought nothing, a shallow round gives the first z_bar."""
  z = np.random.default_rng(4).normal(size=(2, SMALL.size))
  received = [updates(2, [3, 4], z, [10, 30])]
  (z_bar,), memory = run(aggregate.temporal(layerwise=True), received)
  np.testing.assert_allclose(z_bar, [0.25, 0.75] @ z, rtol=1e-14)
  np.testing.assert_array_equal(memory['tau_s'], [2, 2])


def test_memory_is_a_value():
  rule = aggregate.temporal(layerwise=True)
  memory, z_bar, kept = rule.init(SMALL), None, []
  for update in rounds(20):
    memories.freeze(memory)
    kept.append((memory, memories.to_arrays(memory)))
    z_bar, memory = rule.apply(memory, update, z_bar)
  for memory, copy in kept:
    for name, array in memories.to_arrays(memory).items():
      np.testing.assert_array_equal(array, copy[name])


def test_memory_has_who_reported():
  received = list(rounds(40))
  _, memory = run(aggregate.temporal(), received)
  last = {
    int(k): (update.t, m, z)
    for update in received
    for k, m, z in zip(update.ids, update.m, update.z, strict=True)
  }
  assert memory['ids'].tolist() == sorted(last) == [0, 1, 2, 3, 4, 6, 7]
  for row, k in enumerate(sorted(last)):
    t, m, z = last[k]
    assert memory['tau_g'][row] == t
    assert memory['m'][row] == m
    np.testing.assert_array_equal(memory['models'][k], z)


def test_goes_on_from_saved_memory():
  rule, received = aggregate.temporal(layerwise=True), list(rounds(20))
  whole, _ = run(rule, received)
  result, memory = run(rule, received[:9])
  file = io.BytesIO()
  np.savez(file, **memories.to_arrays(memory))
  file.seek(0)
  arrays, z_bar = dict(np.load(file, allow_pickle=False)), result[-1]
  memory = memories.from_arrays(rule.init(SMALL), arrays)
  for update, expected in zip(received[9:], whole[9:], strict=True):
    z_bar, memory = rule.apply(memory, update, z_bar)
    np.testing.assert_array_equal(z_bar, expected)


@pytest.mark.parametrize('kind', ['ram', 'mmap'])
@pytest.mark.parametrize('t', [15, 20])  # with and without deep layers
def test_a_round_does_not_copy_what_others_sent(tmp_path, kind, t):
  """With 400 clients remembered and 2 uploads, a few models at once."""
  size = 20_000
  parts = make_layout(
    ('a/kernel', (size // 2, 1)), ('b/kernel', (size // 2, 1))
  )
  rule = aggregate.temporal(layerwise=True)
  rng = np.random.default_rng(0)

  def sent(t, ids):
    z = [rng.normal(size=size).astype(np.float32) for _ in ids]
    return updates(t, ids, z, [10] * len(ids))

  start = rule.init(parts)
  start['models'] = start['models'].on(kind, tmp_path)
  first = rule.apply(start, sent(1, range(400)), None)
  update = sent(t, [3, 500])
  tracemalloc.start()
  try:
    second = rule.apply(first.memory, update, first.z_bar)
    _, peak = tracemalloc.get_traced_memory()
  finally:
    tracemalloc.stop()
  assert peak < 12 * 4 * size  # sums are in float64
  assert len(second.memory['models']) == 401
  assert second.memory['models'].changed_since(
    first.memory['models'].versions
  ) == [3, 500]


@pytest.mark.parametrize('layerwise', [False, True])
def test_same_bits_in_memory_and_in_a_file(tmp_path, layerwise):
  rule, received = aggregate.temporal(layerwise=layerwise), list(rounds(20))
  expected, memory = run(rule, received)
  stored = rule.init(SMALL)
  stored['models'] = stored['models'].on('mmap', tmp_path)
  z_bar = None
  for update, z in zip(received, expected, strict=True):
    z_bar, stored = rule.apply(stored, update, z_bar)
    assert z_bar.tobytes() == z.tobytes()
  mine, others = memories.to_arrays(memory), memories.to_arrays(stored)
  for name, array in mine.items():
    assert array.tobytes() == others[name].tobytes()


def shallow_size(model_layout, **settings):
  return aggregate.temporal(layerwise=True, **settings).uploads(model_layout, 2)


def layout_of(make, shape, dtype=np.uint8):
  return flat_model.FlatModel(make, np.zeros((1, *shape), dtype)).layout


def test_lenet5():
  result = layout_of(lenet5.lenet5, (28, 28, 1))
  assert shallow_size(result) == 156 + 2416 == 2572
  rule = aggregate.temporal(layerwise=True)
  sent = sum(rule.uploads(result, t) for t in range(1, 16))
  assert sent == 15 * 2572 + 5 * 41_854
  assert sent / (15 * result.size) == pytest.approx(0.3719, abs=5e-5)
  np.testing.assert_array_equal(
    rule.init(result)['deep'], np.arange(44_426) >= 2572
  )


def test_light_vgg():
  result = layout_of(light_vgg.light_vgg, (32, 32, 3))
  assert shallow_size(result) == 1792 + 73_856 + 147_584


def test_moving_statistics_go_with_the_shallow_layers():
  result = layout_of(tiny.normalised, (tiny.FEATURES,), np.float32)
  assert shallow_size(result) == 8 * 16 + 16 + 2 * 16 + 2 * 16
  deep = aggregate.temporal(layerwise=True).init(result)['deep']
  np.testing.assert_array_equal(np.flatnonzero(deep), np.arange(176, 227))


@pytest.mark.parametrize(
  'shapes, expected',
  [
    ({'dense/kernel': (3, 2)}, 6),  # nothing is deep
    ({'a/kernel': (3, 2), 'b/kernel': (2, 2), 'c/kernel': (2, 1)}, 6 + 4),
    ({'a/embeddings': (9, 2), 'b/kernel': (2, 2), 'c/kernel': (2, 2)}, 18),
    ({'a/kernel': (3, 1, 2), 'b/kernel': (3, 2, 2)}, 6),
    ({'a/kernel': (3, 1, 2), 'b/gamma': (2,), 'c/kernel': (2, 5)}, 8),
  ],
)
def test_default_split(shapes, expected):
  assert shallow_size(make_layout(*shapes.items())) == expected


@pytest.mark.parametrize(
  'shallow, expected', [(1, 15 + 3), (2, 31 + 3), (3, 39 + 3)]
)
def test_split_by_number(shallow, expected):
  assert shallow_size(SMALL, shallow=shallow) == expected
  memory = aggregate.temporal(layerwise=True, shallow=shallow).init(SMALL)
  assert SMALL.size - memory['deep'].sum() == expected


def test_a_split_beyond_the_model_is_refused():
  rule = aggregate.temporal(layerwise=True, shallow=4)
  with pytest.raises(errors.InputError, match=r'shallow=4: .*in \[1, 3\]'):
    rule.init(SMALL)


def test_description_has_the_settings():
  rule = aggregate.temporal(2.0, True, 6, 3, 1)
  description = algorithm_lib.describe(
    dataclasses.replace(safl_tf.build_fed_avg(), aggregate=rule)
  )['aggregate']
  assert 'temporal.apply(base=2.0, deep_rounds=3, loop=6)' in description
  assert 'temporal.init(layerwise=True, shallow=1)' in description
  assert (
    'temporal.uploads(deep_rounds=3, layerwise=True, loop=6, shallow=1)'
    in description
  )


@pytest.mark.parametrize(
  'argument, value',
  [
    ('base', 0.9),
    ('base', math.nan),
    ('loop', 0),
    ('loop', 2.5),
    ('deep_rounds', 0),
    ('deep_rounds', 16),
    ('shallow', 0),
    ('shallow', 'half'),
  ],
)
def test_refused(argument, value):
  with pytest.raises(errors.InputError, match=f'{argument}={value}: .*must be'):
    aggregate.temporal(**{argument: value})
