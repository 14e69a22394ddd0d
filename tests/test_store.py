import numpy as np

from safl_tf import store


class Initial:
  """Draws models and remembers for whom."""

  def __init__(self):
    self.asked = []

  def __call__(self, k):
    self.asked.append(k)
    return np.full(3, k, np.float32)


def test_initial_models_are_drawn_when_asked_for():
  initial = Initial()
  devices = store.DeviceStore(initial)
  assert initial.asked == [] and len(devices) == 0
  np.testing.assert_array_equal(devices[5], [5, 5, 5])
  assert initial.asked == [5]
  assert len(devices) == 0  # looking costs nothing


def test_updated_is_a_new_value():
  old = store.DeviceStore(Initial())
  new = old.updated({2: np.ones(3), 4: np.zeros(3)})
  newer = new.updated({2: np.full(3, 9.0)})
  np.testing.assert_array_equal(old[2], [2, 2, 2])
  np.testing.assert_array_equal(new[2], [1, 1, 1])
  np.testing.assert_array_equal(newer[2], [9, 9, 9])
  assert newer[4] is new[4]  # what did not change is shared
  assert [len(s) for s in (old, new, newer)] == [0, 2, 2]


def test_arrays_and_back():
  start = store.DeviceStore(Initial())
  rng = np.random.default_rng(0)
  models = {k: rng.normal(size=3).astype(np.float32) for k in (7, 0, 12)}
  arrays = start.updated(models).to_arrays()
  np.testing.assert_array_equal(arrays['device_ids'], [0, 7, 12])
  assert arrays['device_models'].shape == (3, 3)
  again = start.from_arrays(arrays)
  assert len(again) == 3
  for k in range(13):
    expected = models.get(k, np.full(3, k))
    np.testing.assert_array_equal(again[k], expected)


def test_nobody_took_part_yet():
  start = store.DeviceStore(Initial())
  again = start.from_arrays(start.to_arrays())
  assert len(again) == 0
  np.testing.assert_array_equal(again[3], [3, 3, 3])
