import keras
import numpy as np
import pytest

import safl_tf
from safl_tf.algorithms.fed_ma import layer_chain
from safl_tf.core import process
from safl_tf.models import lenet5
from safl_tf.util import errors
from tests import tiny
from tests.algorithms.fed_ma import nets

layers = keras.layers


@pytest.mark.parametrize('name', nets.NETS)
def test_chains_are_found(name):
  make, shape, links, widths = nets.NETS[name]
  model = nets.flat(make, shape)
  chain = nets.chain_of(model)
  assert [(link.positions, link.biased) for link in chain.links] == links
  assert chain.widths == widths and chain.hidden == widths[1:-1]
  assert chain.size == model.size == model.layout.trainable_size
  layout = model.layout.layers()
  for i, tensors in enumerate(layout):
    assert chain.links[i].name == tensors[0].path.split('/')[-2]
    assert chain.layer_size(i) == sum(tensor.size for tensor in tensors)
    assert chain.tensors_below(i) == sum(map(len, layout[:i]))


@pytest.mark.parametrize('name', nets.NETS)
def test_rebuilt_with_other_widths(name):
  make, shape, _, _ = nets.NETS[name]
  model = nets.flat(make, shape)
  chain = nets.chain_of(model)
  hidden = [width + 1 + i for i, width in enumerate(chain.hidden)]
  new = nets.flat(lambda: layer_chain.rebuild(model.template, hidden), shape)
  assert nets.chain_of(new) == chain.resized(hidden)
  assert new.size == chain.resized(hidden).size
  before, after = model.template, new.template
  assert after.name == before.name
  for one, other in zip(before.layers, after.layers, strict=True):
    assert (type(one), one.name) == (type(other), other.name)
    changed = {'units', 'filters', 'target_shape'}
    kept = [
      {k: v for k, v in layer.get_config().items() if k not in changed}
      for layer in (one, other)
    ]
    assert kept[0] == kept[1]
  assert after(nets.inputs(shape, 2)).shape == (2, chain.widths[-1])


@pytest.mark.parametrize('name', ['mlp', 'conv_net', 'reshaped'])
def test_rebuilt_with_the_same_widths_computes_the_same(name):
  make, shape, _, _ = nets.NETS[name]
  model = nets.flat(make, shape)
  z, x = nets.noise(model.size), nets.inputs(shape)
  hidden = nets.chain_of(model).hidden
  new = nets.flat(lambda: layer_chain.rebuild(model.template, hidden), shape)
  np.testing.assert_array_equal(
    nets.outputs(new, z, x), nets.outputs(model, z, x)
  )


def test_functions_of_the_users_own_are_kept():
  def own_activation(x):
    return keras.ops.sin(x)

  def own_initializer(shape, dtype=None):
    return np.full(shape, 0.5, 'float32')

  model = keras.Sequential(
    [
      keras.Input((4,)),
      layers.Dense(
        3, activation=own_activation, kernel_initializer=own_initializer
      ),
      layers.Dense(2),
    ]
  )
  new = layer_chain.rebuild(model, [5])
  assert new.layers[0].activation is own_activation
  assert new.layers[0].kernel_initializer is own_initializer
  assert new.layers[0].units == 5


@pytest.mark.parametrize(
  'wrap', [lambda t: t, lambda t: [t], lambda t: {'a': t}]
)
def test_inputs_keep_their_structure(wrap):
  entry = keras.Input((4,), name='a')
  model = keras.Model(wrap(entry), layers.Dense(3)(layers.Dense(5)(entry)))
  new = layer_chain.rebuild(model, [7])
  assert new.layers[0].name == 'a' and type(new.input) is type(model.input)
  assert new(wrap(np.ones((2, 4), np.float32))).shape == (2, 3)


def graph(make, shape=nets.IMAGE):
  entry = keras.Input(shape)
  return keras.Model(entry, make(entry), name='graph')


def stack(*after, shape=nets.IMAGE):
  return keras.Sequential([keras.Input(shape), *after], name='stack')


def conv(**options):
  return layers.Conv2D(4, 3, name='conv', **options)


def head():
  return [layers.Flatten(), layers.Dense(3)]


def residual():
  def make(x):
    x = layers.Dense(4)(x)
    y = layers.Dense(4)(x)
    return layers.Dense(3)(layers.Add(name='sum')([x, y]))

  return graph(make, (8,))


def two_branches():
  def make(x):
    left, right = (layers.Dense(4, name=name)(x) for name in ('a', 'b'))
    return layers.Dense(3)(layers.Concatenate()([left, right]))

  return graph(make, (8,))


def with_an_operation():
  return graph(
    lambda x: layers.Dense(3)(keras.ops.flip(layers.Dense(4)(x), axis=-1)),
    (8,),
  )


def frozen():
  model = nets.mlp()
  model.layers[1].trainable = False
  model.layers[1].name = 'stuck'
  return model


class OwnDense(layers.Dense):
  """May compute anything."""


class OwnSequential(keras.Sequential):
  """May compute anything."""


def first_half(x):
  """Looks across units, and fails for a single one."""
  return keras.ops.split(x, 2, axis=-1)[0]


REFUSED = {
  'subclassed': (
    lambda: nets.flat(tiny.Subclassed, (8,)).template,
    'Subclassed is neither Sequential nor functional',
  ),
  'subclass of Sequential': (
    lambda: OwnSequential([keras.Input((8,)), layers.Dense(3)]),
    'OwnSequential is neither',
  ),
  'residual': (residual, r"layer 'sum' \(Add\) joins branches"),
  'two branches': (two_branches, r"layer '[ab]' \(Dense\) is on one of"),
  'two inputs': (tiny.two_inputs, 'is on one of several branches'),
  'shared layer': (tiny.shared_layer, r'\(Dense\) is used twice'),
  'nested': (
    tiny.nested,
    r"layer 'sequential.*' \(Sequential\) is a nested model",
  ),
  'operation': (with_an_operation, r"layer 'flip.*' \(Flip\) is not a layer"),
  'batch norm': (
    lambda: stack(conv(), layers.BatchNormalization(name='bn'), *head()),
    r"layer 'bn' \(BatchNormalization\) has weights that are not matched",
  ),
  'batch norm at first': (
    lambda: stack(layers.BatchNormalization(name='bn'), conv(), *head()),
    r"layer 'bn' \(BatchNormalization\) has weights",
  ),
  'PReLU': (lambda: stack(conv(), layers.PReLU(), *head()), 'PReLU.*weights'),
  'depthwise': (
    lambda: stack(conv(), layers.DepthwiseConv2D(3), *head()),
    'DepthwiseConv2D.* has weights',
  ),
  'transposed': (
    lambda: stack(conv(), layers.Conv2DTranspose(4, 3), *head()),
    'Conv2DTranspose.* has weights',
  ),
  'groups': (
    lambda: stack(conv(groups=2), *head()),
    r"layer 'conv' \(Conv2D\) has 2 groups",
  ),
  'channels first': (
    lambda: stack(conv(data_format='channels_first', padding='same'), *head()),
    "layer 'conv' .* has the data format 'channels_first'",
  ),
  'flattened channels first': (
    lambda: stack(
      conv(),
      layers.Flatten(data_format='channels_first', name='flat'),
      layers.Dense(3),
    ),
    "layer 'flat' .* 'channels_first'",
  ),
  'frozen': (frozen, r"layer 'stuck' \(Dense\) is frozen"),
  'class of its own': (
    lambda: stack(OwnDense(4, name='own'), *head()),
    r"layer 'own' \(OwnDense\) has weights",
  ),
  'permuted axes': (
    lambda: stack(conv(), layers.Permute((3, 1, 2)), *head()),
    r'\(Permute\) is not known to keep channels separate',
  ),
  'reshaped across channels': (
    lambda: stack(
      layers.Dense(4), layers.Reshape((128, 2), name='cut'), *head()
    ),
    r"layer 'cut' \(Reshape\) splits the 4 channels",
  ),
  'channels scaled differently': (
    lambda: stack(conv(), layers.Rescaling([1.0, 2, 3, 4]), *head()),
    r'\(Rescaling\) scales channels differently',
  ),
  'hidden softmax': (
    lambda: stack(conv(activation='softmax'), *head()),
    r"layer 'conv' \(Conv2D\) has an activation that looks across units",
  ),
  'hidden softmax layer': (
    lambda: stack(conv(), layers.Softmax(name='soft'), *head()),
    r"layer 'soft' \(Softmax\) has an activation",
  ),
  'activation across units': (
    lambda: stack(conv(), layers.Activation(first_half, name='half'), *head()),
    r"layer 'half' \(Activation\) has an activation",
  ),
  'outputs that are no units': (
    lambda: stack(layers.Conv2D(3, 7, name='last'), layers.Flatten()),
    r"layer 'last' \(Conv2D\) has 3 units for 12 outputs",
  ),
}


@pytest.mark.parametrize('make, hint', REFUSED.values(), ids=REFUSED)
def test_refused(make, hint):
  model = make()
  with pytest.raises(errors.InputError, match=f'^model={model.name}: .*{hint}'):
    layer_chain.find(model)


def test_refused_when_the_process_is_made():
  algorithm = safl_tf.build_fed_ma()
  hint = r'^model=functional.*: FedMA needs a chain .* is on one of several'
  with pytest.raises(errors.InputError, match=hint):
    process.FederatedProcess(tiny.functional, tiny.clients(), algorithm)


def test_plain_activations_are_pointwise():
  names = ('relu', 'gelu', 'silu', 'tanh', 'elu', 'selu', 'hard_sigmoid')
  for name in names:
    layer_chain.find(lenet5.lenet5(activation=name))
