import hashlib
import math
import re

import numpy as np
import pytest

from safl_tf.core import seeds
from safl_tf.data import partition
from safl_tf.util import errors

NUM_CLASSES = 10


def labels(total=6000, num_classes=NUM_CLASSES):
  return np.random.default_rng(0).integers(0, num_classes, total, np.int32)


def drawn_size(seed, k, mean, variance):
  """m_k by the formula, from client k's own generator."""
  rng = seeds.generator(seed, seeds.Role.PARTITION, k)
  return max(math.floor(rng.normal(mean, math.sqrt(variance))), 1)


FACTORIES = {
  'by_labels': lambda n, **kw: partition.by_labels(n, mean_examples=60, **kw),
  'iid': lambda n, **kw: partition.iid(n, mean_examples=60, **kw),
  'iid_disjoint': partition.iid,
  'biased': lambda n, **kw: partition.biased(n, mean_examples=60, **kw),
  'dirichlet': lambda n, **kw: partition.dirichlet(n, mean_examples=60, **kw),
  'shards': partition.shards,
  'quantity': partition.quantity,
}
SIZED = [
  partition.by_labels,
  partition.iid,
  partition.biased,
  partition.dirichlet,
]
DISJOINT = [partition.iid, partition.shards, partition.quantity]
ALL = [*SIZED, *DISJOINT[1:]]


def check_contract(parts, y, num_clients):
  assert len(parts) == num_clients
  for part in parts:
    assert part.dtype == np.int32
    assert len(part) >= 1
    assert len(np.unique(part)) == len(part)
    assert part.min() >= 0 and part.max() < len(y)


@pytest.mark.parametrize('make', FACTORIES.values(), ids=FACTORIES)
def test_contract(make):
  y = labels()
  check_contract(make(50, seed=3)(y, NUM_CLASSES), y, 50)


@pytest.mark.parametrize('make', FACTORIES.values(), ids=FACTORIES)
@pytest.mark.parametrize('total', [1, 2, 29, 30, 31, 61])
def test_contract_with_few_examples(make, total):
  y = labels(total)
  check_contract(make(30)(y, NUM_CLASSES), y, 30)


@pytest.mark.parametrize('make', FACTORIES.values(), ids=FACTORIES)
def test_contract_with_few_of_many_labels(make):
  y = 5 + 90_000 * labels(400, 3)  # 5, 90,005 and 180,005
  check_contract(make(20)(y, 200_000), y, 20)


@pytest.mark.parametrize('make', DISJOINT)
@pytest.mark.parametrize('n', [1, 7, 501])
def test_disjoint_partitions_give_every_example_to_one_client(make, n):
  parts = make(n)(labels(1003), NUM_CLASSES)
  assert sorted(np.concatenate(parts)) == list(range(1003))


@pytest.mark.parametrize('make', FACTORIES.values(), ids=FACTORIES)
def test_examples_are_in_random_order(make):
  parts = make(5)(np.sort(labels()), NUM_CLASSES)
  falls = [(np.diff(part) < 0).mean() for part in parts if len(part) > 40]
  assert falls and min(falls) > 0.3


# A seed means the same examples in every version.
BITS = [
  (partition.by_labels(50, seed=3), '307be61e1742737d'),
  (partition.by_labels(50, 4, 60, seed=3), '103cf6d787b6f40b'),
  (partition.iid(50, seed=3), 'e7c24b38419b79c0'),
  (partition.iid(50, 60, seed=3), 'fe905621a53fe59b'),
  (partition.iid(7000, seed=1), '613e69ad0e994160'),
]


@pytest.mark.parametrize('make, expected', BITS)
def test_bits(make, expected):
  parts = make(labels(), NUM_CLASSES)
  sizes = [np.int32(len(part)) for part in parts]
  data = b''.join(
    size.tobytes() + part.tobytes()
    for size, part in zip(sizes, parts, strict=True)
  )
  assert hashlib.sha256(data).hexdigest()[:16] == expected


@pytest.mark.parametrize('make', FACTORIES.values(), ids=FACTORIES)
def test_seed_determines_the_partition(make):
  y = labels()
  first, again, other = (make(5, seed=s)(y, NUM_CLASSES) for s in (1, 1, 2))
  assert all(map(np.array_equal, first, again))
  assert not any(map(np.array_equal, first, other))


@pytest.mark.parametrize('name', ['by_labels', 'iid', 'dirichlet'])
def test_client_does_not_depend_on_the_number_of_clients(name):
  y = labels()
  few = FACTORIES[name](3)(y, NUM_CLASSES)
  many = FACTORIES[name](40)(y, NUM_CLASSES)
  assert all(map(np.array_equal, few, many[:3]))
  assert not np.array_equal(many[0], many[1])


@pytest.mark.parametrize('make', SIZED)
@pytest.mark.parametrize('mean, variance', [(60, 100.0), (5.5, 0.0), (3, 1e6)])
def test_sizes_follow_the_formula(make, mean, variance):
  y = labels(60_000)
  parts = make(30, mean_examples=mean, variance_examples=variance, seed=4)(
    y, NUM_CLASSES
  )
  sizes = [len(part) for part in parts]
  assert sizes == [drawn_size(4, k, mean, variance) for k in range(30)]
  if variance == 0:
    assert set(sizes) == {5}
  if variance == 1e6:
    assert 1 in sizes and max(sizes) > 500


def test_default_mean_is_an_equal_share():
  y = labels(60_000)
  parts = partition.by_labels(100)(y, NUM_CLASSES)
  assert [len(p) for p in parts] == [
    drawn_size(0, k, 600, 100) for k in range(100)
  ]


@pytest.mark.parametrize('max_labels', [1, 3, 7])
def test_number_of_labels_is_uniform(max_labels):
  y = labels(20_000)
  parts = partition.by_labels(700, max_labels, mean_examples=200)(
    y, NUM_CLASSES
  )
  # 200 examples show all their labels: one of 7 is missing with (6/7)^200.
  held = [len(np.unique(y[part])) for part in parts]
  counts = np.bincount(held, minlength=max_labels + 1)
  assert counts[0] == 0 and len(counts) == max_labels + 1
  expected = 700 / max_labels
  np.testing.assert_allclose(counts[1:], expected, atol=4 * expected**0.5)


def test_labels_and_examples_are_uniform():
  y = np.repeat(np.arange(4), [10, 20, 30, 40]).astype(np.int32)
  make = partition.by_labels(
    8000, max_labels=4, mean_examples=2, variance_examples=0
  )
  rows = np.concatenate(make(y, 4))
  # A label's expected share given its sizes: the mean over the sets of labels.
  sets = [[i for i in range(4) if bits >> i & 1] for bits in range(1, 16)]
  sizes = np.bincount(y)
  share = np.zeros(4)
  for chosen in sets:
    weight = 1 / 4 / math.comb(4, len(chosen))
    share[chosen] += weight * sizes[chosen] / sizes[chosen].sum()
  counts = np.bincount(y[rows], minlength=4)
  np.testing.assert_allclose(counts / len(rows), share, atol=0.02)
  within = np.bincount(rows, minlength=100)[y == 3]
  np.testing.assert_allclose(within, within.mean(), rtol=0.25)


def test_sizes_are_limited_to_the_data():
  y = np.repeat(np.arange(5), 4).astype(np.int32)
  parts = partition.by_labels(20, 3, mean_examples=1000)(y, 5)
  for part in parts:
    assert len(part) == 4 * len(np.unique(y[part]))
  for part in partition.iid(3, mean_examples=1000)(y, 5):
    assert sorted(part) == list(range(20))


def test_labels_without_examples_are_never_chosen():
  y = np.array([2, 2, 7, 7, 7], np.int32)
  for part in partition.by_labels(50, 7, mean_examples=3)(y, 10):
    assert set(y[part]) <= {2, 7}


def test_iid_deals_out_all_the_data():
  y = labels(1003)
  parts = partition.iid(10)(y, NUM_CLASSES)
  assert sorted(np.concatenate(parts)) == list(range(1003))
  assert {len(part) for part in parts} == {100, 101}
  assert not np.array_equal(parts[0], np.sort(parts[0]))


def test_iid_with_more_clients_than_examples():
  parts = partition.iid(30, variance_examples=0)(labels(10), NUM_CLASSES)
  assert [len(part) for part in parts] == [1] * 30


def test_iid_draws_overlap():
  parts = partition.iid(10, mean_examples=500)(labels(1000), NUM_CLASSES)
  assert len(np.unique(np.concatenate(parts))) < sum(map(len, parts))


BAD = [
  ('num_clients', 0),
  ('num_clients', 2.5),
  ('num_clients', True),
  ('seed', -1),
  ('seed', 'a'),
]
BAD_SIZES = [
  ('mean_examples', 0),
  ('mean_examples', math.nan),
  ('variance_examples', -1.0),
  ('variance_examples', math.inf),
]
BAD_OPTIONS = [
  (partition.by_labels, 'max_labels', 0),
  (partition.biased, 'max_labels', 1),
  (partition.biased, 'biased_fraction', -0.1),
  (partition.biased, 'biased_fraction', 1.1),
  (partition.biased, 'biased_label', -1),
  *(
    (partition.dirichlet, 'alpha', alpha)
    for alpha in (0, -1.0, 1e-10, 1e10, math.nan, 'a')
  ),
  (partition.shards, 'shards_per_client', 0),
  (partition.shards, 'shards_per_client', 1.5),
  (partition.quantity, 'sigma', -0.1),
  (partition.quantity, 'sigma', 101.0),
]


@pytest.mark.parametrize(
  'make, argument, value',
  [
    *((make, *bad) for make in ALL for bad in BAD),
    *((make, *bad) for make in SIZED for bad in BAD_SIZES),
    *BAD_OPTIONS,
  ],
)
def test_factories_check_arguments(make, argument, value):
  message = re.escape(f'{argument}={value}: must be')
  with pytest.raises(errors.InputError, match=f'^{message}'):
    make(**{'num_clients': 3, argument: value})


@pytest.mark.parametrize(
  'make, low', [(partition.by_labels, 1), (partition.biased, 2)]
)
def test_more_labels_than_classes(make, low):
  message = rf'^max_labels=7: .*\[{low}, 4\]'
  with pytest.raises(errors.InputError, match=message):
    make(3)(labels(100, 4), 4)


@pytest.mark.parametrize('make', ALL)
def test_no_labels(make):
  with pytest.raises(errors.InputError, match=r'^y=no labels: '):
    make(3)(np.zeros(0, np.int32), NUM_CLASSES)
