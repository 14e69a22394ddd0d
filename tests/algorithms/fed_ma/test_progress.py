import numpy as np

from safl_tf.algorithms.fed_ma import progress


def matching():
  """Of two clients with layers of 2 and 3 units."""
  result = progress.begin(np.array([3, 7]), (2, 3))
  result = result.extended(
    0, [np.array([0, 1]), np.array([2, 1])], np.array([1, 2, 1])
  )
  maps = [np.array([0, 1, 2]), np.array([3, 1, 4])]
  return result.extended(1, maps, np.array([1, 2, 1, 1, 1]))


def test_layers_are_added():
  result = matching()
  np.testing.assert_array_equal(result.widths, [3, 5])
  np.testing.assert_array_equal(result.maps, [[0, 1, 0, 1, 2], [2, 1, 3, 1, 4]])
  np.testing.assert_array_equal(result.counts, [1, 2, 1, 1, 2, 1, 1, 1])
  assert result.maps.dtype == np.int32


def test_a_client_takes_its_own_units():
  first, second = matching().chosen(7, (2, 3))
  np.testing.assert_array_equal(first, [2, 1])
  np.testing.assert_array_equal(second, [3, 1, 4])


def test_a_newcomer_takes_the_most_common_units():
  first, second = matching().chosen(5, (2, 3))
  np.testing.assert_array_equal(first, [0, 1])  # the first of equal ones
  np.testing.assert_array_equal(second, [0, 1, 2])


def test_what_is_written_can_be_read():
  result = matching()
  written = {**result.write(progress.GLOBAL), 'pass_models': np.zeros(2)}
  again = progress.read(written, progress.GLOBAL)
  for one, other in zip(result, again, strict=True):
    np.testing.assert_array_equal(one, other)
  assert progress.read(written, progress.PASS) is None
  assert (
    progress.finished(written).keys() == result.write(progress.GLOBAL).keys()
  )
  np.testing.assert_array_equal(written[progress.WIDTHS], [3, 5])


def test_clients_leave():
  result = matching().only(np.array([False, True]))
  np.testing.assert_array_equal(result.ids, [7])
  np.testing.assert_array_equal(result.maps, [[2, 1, 3, 1, 4]])
