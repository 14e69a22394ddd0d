import numpy as np
import pytest

from safl_tf.algorithms.fed_ma import (
  layer_chain,
  layer_match,
  layer_weights,
  matching,
)
from tests.algorithms.fed_ma import nets


@pytest.mark.parametrize('name', nets.NETS)
def test_permuted_copies_compute_the_same(name):
  make, shape, _, _ = nets.NETS[name]
  model = nets.flat(make, shape)
  chain, x = nets.chain_of(model), nets.inputs(shape)
  z = model.init(np.array([1, 2], np.int32))
  z += nets.noise(model.size, 0.01)
  expected = nets.outputs(model, z, x)
  copy, orders = nets.permuted(chain, z, seed=2)
  assert not np.array_equal(copy, z)
  np.testing.assert_allclose(
    nets.outputs(model, copy, x), expected, rtol=0, atol=1e-6
  )
  back = layer_weights.pick(
    chain, copy, [np.argsort(order) for order in orders]
  )
  np.testing.assert_array_equal(back, z)


def test_another_order_of_rows_computes_something_else():
  """The rule of frameworks that flatten (C, H, W) is wrong here."""
  make, shape, _, _ = nets.NETS['lenet5']
  model = nets.flat(make, shape)
  chain, x = nets.chain_of(model), nets.inputs(shape)
  z = model.init(np.array([1, 2], np.int32))
  order = np.random.default_rng(0).permutation(16)
  parts = layer_weights.split(chain, z)
  parts[1] = layer_weights.Weights(
    parts[1].kernel[..., order], parts[1].bias[order]
  )
  kernel = parts[2].kernel
  right = kernel[:, order]
  wrong = kernel.reshape(16, 16, -1)[order].reshape(kernel.shape)
  errors = []
  for moved in (right, wrong):
    parts[2] = layer_weights.Weights(moved, parts[2].bias)
    got = nets.outputs(model, layer_weights.join(parts), x)
    errors.append(np.abs(got - nets.outputs(model, z, x)).max())
  assert errors[0] < 1e-6 < 0.1 < errors[1]


@pytest.mark.parametrize('name', ['conv_net', 'lenet5'])
def test_split_and_join(name):
  make, shape, _, widths = nets.NETS[name]
  model = nets.flat(make, shape)
  chain, z = nets.chain_of(model), nets.noise(model.size)
  parts = layer_weights.split(chain, z)
  assert layer_weights.join(parts).tobytes() == z.tobytes()
  weights = iter(model.to_model(z).get_weights())
  for i, (kernel, bias) in enumerate(parts):
    assert kernel.shape[1:] == widths[i : i + 2]
    np.testing.assert_array_equal(kernel.ravel(), next(weights).ravel())
    if bias is not None:
      np.testing.assert_array_equal(bias, next(weights))
    rows = layer_weights.to_rows(parts[i])
    assert rows.shape == (widths[i + 1], chain.layer_size(i) // widths[i + 1])
    assert rows.dtype == np.float64
    again = layer_weights.from_rows(rows, parts[i])
    assert (
      layer_weights.join([again]).tobytes()
      == layer_weights.join([parts[i]]).tobytes()
    )
  with pytest.raises(ValueError, match='has shape'):
    layer_weights.split(chain, z[1:])


def test_a_row_is_a_unit():
  layer = layer_weights.Weights(
    np.arange(12.0).reshape(2, 3, 2), np.array([50.0, 60.0])
  )
  np.testing.assert_array_equal(
    layer_weights.to_rows(layer),
    [[0, 2, 4, 6, 8, 10, 50], [1, 3, 5, 7, 9, 11, 60]],
  )


def test_inputs_are_placed():
  kernel = np.arange(12.0).reshape(2, 3, 2)
  new = layer_weights.place_inputs(
    layer_weights.Weights(kernel, None), np.array([4, 0, 1]), 5
  )
  np.testing.assert_array_equal(new.kernel[:, [4, 0, 1]], kernel)
  assert not new.kernel[:, [2, 3]].any() and new.bias is None


def test_a_part_is_picked():
  chain = layer_chain.Chain(
    (layer_chain.Link('a', 1, True), layer_chain.Link('b', 2, False)), (1, 3, 2)
  )
  z = np.arange(18.0)
  first, second = layer_weights.split(
    chain.resized([2]), layer_weights.pick(chain, z, [np.array([2, 0])])
  )
  np.testing.assert_array_equal(first.kernel, [[[2, 0]]])
  np.testing.assert_array_equal(first.bias, [5, 3])
  old = z[6:].reshape(2, 3, 2)
  np.testing.assert_array_equal(second.kernel, old[:, [2, 0]])


def test_tiny_network_vector():
  """Two clients 2 -> 2 -> 1; the second has its units swapped."""
  chain = layer_chain.Chain(
    (layer_chain.Link('a', 1, True), layer_chain.Link('b', 1, True)), (2, 2, 1)
  )
  one = layer_weights.split(chain, np.array([1, 2, 3, 4, 0.1, 0.2, 5, 6, 0.3]))
  other = layer_weights.split(
    chain, np.array([2.2, 1.2, 4.2, 3.2, 0.4, 0.3, 6.4, 5.4, 0.5])
  )
  rng, sizes = np.random.default_rng(0), np.array([2, 1])
  result = layer_match.match(
    matching.MatchConfig(), [one[0], other[0]], sizes, rng
  )
  np.testing.assert_array_equal(result.maps, [[0, 1], [1, 0]])
  np.testing.assert_allclose(result.weights.kernel, [[[1.1, 2.1], [3.1, 4.1]]])
  np.testing.assert_allclose(result.weights.bias, [0.2, 0.3])
  upper = [
    layer_weights.place_inputs(z[1], pi, 2)
    for z, pi in zip((one, other), result.maps, strict=True)
  ]
  last = layer_match.average_classifier(upper, np.array([[7], [7]]))
  np.testing.assert_allclose(last.kernel, [[[5.2], [6.2]]])
  np.testing.assert_allclose(last.bias, [0.4])


def test_outputs_beyond_the_classes_are_averaged_equally():
  kernels = [np.full((1, 2, 3), v, np.float32) for v in (1.0, 3.0)]
  weights = [layer_weights.Weights(kernel, None) for kernel in kernels]
  last = layer_match.average_classifier(weights, np.array([[1, 0], [3, 0]]))
  np.testing.assert_array_equal(last.kernel[0], [[2.5, 2, 2]] * 2)
  assert last.bias is None and last.kernel.dtype == np.float32


@pytest.mark.parametrize('biased', [True, False])
def test_only_a_bias_has_a_prior_mean(biased):
  """A unit on two clients, at the prior's mean, stays there."""
  bias = np.array([0.1]) if biased else None
  layer = layer_weights.Weights(np.zeros((1, 2, 1)), bias)
  settings = matching.MatchConfig(average='map')
  rng = np.random.default_rng(0)
  result = layer_match.match(settings, [layer, layer], np.ones(2), rng)
  np.testing.assert_allclose(result.weights.kernel, 0, atol=1e-15)
  if biased:
    np.testing.assert_allclose(result.weights.bias, [0.1])
