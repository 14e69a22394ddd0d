import keras
import numpy as np
import pytest

from safl_tf.models import lenet5, light_vgg
from safl_tf.models.fast import choose, folded_conv
from safl_tf.util import errors, hardware

layers = keras.layers


def chain(*middle, shape=(12, 12, 2)):
  return keras.Sequential(
    [keras.Input(shape), *middle, layers.Flatten(), layers.Dense(3)]
  )


def conv_pool(filters=4, kernel=3, **options):
  pool = options.pop('pool', None) or layers.MaxPooling2D(2)
  return [layers.Conv2D(filters, kernel, **options), pool]


def functional_chain():
  entry = x = keras.Input((12, 12, 2))
  for layer in (*conv_pool(), layers.Flatten(), layers.Dense(3)):
    x = layer(x)
  return keras.Model(entry, x)


def kinds(model):
  return [type(layer).__name__ for layer in model.layers]


def check_equivalent(model, fast, shape=(12, 12, 2)):
  """Same variables in the same order; same outputs once they are equal."""
  assert fast is not model
  assert [v.shape for v in fast.trainable_variables] == [
    v.shape for v in model.trainable_variables
  ]
  assert [v.shape for v in fast.non_trainable_variables] == [
    v.shape for v in model.non_trainable_variables
  ]
  pairs = zip(fast.variables, model.variables, strict=True)
  for number, (mine, other) in enumerate(pairs):
    rng = np.random.default_rng(number)
    value = np.abs(rng.normal(size=other.shape)) * 0.1
    mine.assign(value.astype(other.dtype))
    other.assign(value.astype(other.dtype))
  x = np.random.default_rng(0).integers(0, 256, (5, *shape)).astype(np.uint8)
  np.testing.assert_allclose(fast(x), model(x), rtol=1e-4, atol=1e-4)


def test_lenet5_is_folded_and_compiled():
  model = lenet5.lenet5()
  fast = choose.fast_model(model)
  assert fast.jit_compile
  assert kinds(fast.model) == [
    'Rescaling',
    'FoldedConvPool2D',
    'FoldedConvPool2D',
    'Flatten',
    'Dense',
    'Dense',
    'Dense',
  ]
  assert {w.lowering for w in fast.model.layers[1:3]} == {'matmul'}
  check_equivalent(model, fast.model, (28, 28, 1))


def test_light_vgg_is_computed_by_winograd():
  model = light_vgg.light_vgg((32, 32, 3), 3)
  fast = choose.fast_model(model)
  assert fast.jit_compile
  assert kinds(fast.model)[1:6] == ['PatchConv2D', *['WinogradConvPool2D'] * 4]
  check_equivalent(model, fast.model, (32, 32, 3))


@pytest.fixture(autouse=True)
def without_onednn(monkeypatch):
  monkeypatch.setattr(hardware, 'uses_onednn', lambda: False)


def test_light_vgg_is_widened_without_xla():
  """But unchanged on a GPU; the native layer pools odd sizes."""
  model = light_vgg.light_vgg((24, 24, 1), 3)
  fast = choose.fast_model(model)
  assert not fast.jit_compile
  assert kinds(fast.model)[2:7] == [
    *['WideConvPool2D'] * 3,  # of 24, 12 and 6 pixels
    'Conv2D',
    'MaxPooling2D',
  ]
  check_equivalent(model, fast.model, (24, 24, 1))
  assert choose.fast_model(model, on_gpu=True)[:2] == (model, False)


def test_functional_chain_is_folded():
  model = functional_chain()
  for _ in range(2):  # the first has no side effects
    fast = choose.fast_model(model)
    assert kinds(fast.model) == ['FoldedConvPool2D', 'Flatten', 'Dense']
    assert fast.jit_compile
  check_equivalent(model, fast.model)


@pytest.mark.parametrize('padding', ['valid', 'same'])
@pytest.mark.parametrize('pool', [layers.MaxPooling2D, layers.AveragePooling2D])
def test_chains_with_other_layers_are_folded(padding, pool):
  model = chain(
    *conv_pool(pool=pool(2), padding=padding, activation='relu'),
    layers.LayerNormalization(),
    *conv_pool(8, 3, pool=pool(2), padding=padding, use_bias=False),
    layers.ReLU(),
  )
  fast = choose.fast_model(model)
  assert kinds(fast.model).count('FoldedConvPool2D') == 2
  assert fast.jit_compile
  check_equivalent(model, fast.model)


def test_dropout_is_folded_but_not_compiled():
  """XLA's random numbers take longer than compiling saves."""
  model = chain(*conv_pool(), layers.Dropout(0.5))
  fast = choose.fast_model(model)
  assert fast.model.layers[0].lowering == 'conv'
  assert not fast.jit_compile
  check_equivalent(model, fast.model)


def test_chain_with_batch_normalization_is_not_compiled():
  """Its statistics would include the padding of a batch."""
  model = chain(*conv_pool(), layers.BatchNormalization())
  assert not choose.fast_model(model).jit_compile
  dense = keras.Sequential(
    [keras.Input((8,)), layers.BatchNormalization(), layers.Dense(3)]
  )
  assert choose.fast_model(dense)[:2] == (dense, False)
  check_equivalent(model, choose.fold(model, 'conv'))


def test_frozen_layers_stay_frozen():
  model = chain(*conv_pool(), layers.Flatten(), layers.Dense(5))
  model.layers[-2].trainable = False
  fast = choose.fast_model(model)
  assert 'FoldedConvPool2D' in kinds(fast.model)
  check_equivalent(model, fast.model)


def residual():
  entry = keras.Input((12, 12, 2))
  x = layers.Conv2D(2, 3, padding='same')(entry)
  x = layers.MaxPooling2D(2)(x)
  y = layers.ReLU()(x)
  y = layers.Flatten()(layers.Add()([x, y]))  # one layer at each depth
  return keras.Model(entry, layers.Dense(3)(y))


def branches():
  entry = keras.Input((12, 12, 2))
  sides = [
    layers.Flatten()(layers.MaxPooling2D(2)(layers.Conv2D(2, 3)(entry)))
    for _ in range(2)
  ]
  return keras.Model(entry, layers.Dense(3)(layers.Concatenate()(sides)))


def used_twice():
  entry = keras.Input((12, 12, 2))
  conv = layers.Conv2D(2, 3, padding='same')
  pool = layers.MaxPooling2D(2)
  x = pool(conv(pool(conv(entry))))
  return keras.Model(entry, layers.Dense(3)(layers.Flatten()(x)))


def with_operation():
  entry = keras.Input((12, 12, 2))
  x = layers.MaxPooling2D(2)(layers.Conv2D(2, 3)(entry))
  return keras.Model(entry, layers.Dense(3)(layers.Flatten()(x * 2.0)))


class CustomSequential(keras.Sequential):
  def call(self, inputs, training=None, mask=None):
    return 2 * super().call(inputs, training=training, mask=mask)


def custom_call():
  return CustomSequential(chain(*conv_pool()).layers)


NOT_FOLDED = {
  'residual': residual,
  'branches': branches,
  'a layer used twice': used_twice,
  'an operation that is no layer': with_operation,
  'a custom call': custom_call,
  'a nested model': lambda: chain(keras.Sequential(conv_pool())),
  'strides': lambda: chain(*conv_pool(strides=2)),
  'dilation': lambda: chain(*conv_pool(dilation_rate=2)),
  'groups': lambda: chain(*conv_pool(groups=2)),
  'an even kernel': lambda: chain(*conv_pool(kernel=2)),
  'a kernel that is not square': lambda: chain(*conv_pool(kernel=(3, 5))),
  'many filters': lambda: chain(*conv_pool(filters=64)),
  'no pooling': lambda: chain(layers.Conv2D(4, 3)),
  'a layer before pooling': lambda: chain(
    layers.Conv2D(4, 3), layers.ReLU(), layers.MaxPooling2D(2)
  ),
  'pooling by 3': lambda: chain(*conv_pool(pool=layers.MaxPooling2D(3))),
  'overlapping pooling': lambda: chain(
    *conv_pool(pool=layers.MaxPooling2D(2, strides=1))
  ),
  'padded pooling': lambda: chain(
    *conv_pool(pool=layers.MaxPooling2D(2, padding='same'))
  ),
  'a regularizer': lambda: chain(*conv_pool(kernel_regularizer='l2')),
  'a constraint': lambda: chain(*conv_pool(kernel_constraint='max_norm')),
  'a frozen convolution': lambda: chain(*conv_pool(trainable=False)),
  'softmax': lambda: chain(*conv_pool(activation='softmax')),
  'log_softmax': lambda: chain(*conv_pool(activation='log_softmax')),
  'a function as activation': lambda: chain(
    *conv_pool(activation=lambda x: x / keras.ops.sum(x, axis=-1, keepdims=1))
  ),
  'a separable convolution': lambda: chain(
    layers.SeparableConv2D(4, 3), layers.MaxPooling2D(2)
  ),
  'images of any size': lambda: keras.Sequential(
    [
      keras.Input((None, None, 2)),
      *conv_pool(),
      layers.GlobalAveragePooling2D(),
      layers.Dense(3),
    ]
  ),
}


@pytest.mark.parametrize('make', NOT_FOLDED.values(), ids=NOT_FOLDED)
def test_not_folded(make):
  """Convolutions stay native, or become products if XLA is forced."""
  model = make()
  assert choose.fold(model) is None
  auto, forced = choose.fast_model(model), choose.fast_model(model, 'true')
  assert not auto.jit_compile and forced.jit_compile
  replaced = {'MaxPooling2D': 'MaxPool2x2', 'MaxPool2x2': 'MaxPool2x2'}
  plain = lambda names: [replaced.get(n, n) for n in names if n != 'InputLayer']
  assert plain(kinds(auto.model)) == plain(kinds(model))
  for fast in auto, forced:
    if fast.model is not model:
      check_equivalent(model, fast.model)


def test_what_layers_have_learned_is_kept():
  """Statistics and vocabularies are in no configuration."""
  rng = np.random.default_rng(0)
  normalization, lookup = layers.Normalization(), layers.IntegerLookup()
  normalization.adapt(rng.normal(3, 2, (20, 12, 12, 2)))
  lookup.adapt(np.array([10, 20, 20, 30]))
  image, number = keras.Input((12, 12, 2)), keras.Input((1,), dtype='int64')
  pooled = layers.MaxPooling2D(2)(layers.Conv2D(2, 3)(normalization(image)))
  parts = [pooled, layers.Embedding(5, 3)(lookup(number))]
  parts = layers.Concatenate()([layers.Flatten()(part) for part in parts])
  model = keras.Model([image, number], layers.Dense(3)(parts))
  fast = choose.fast_model(model).model
  assert 'MaxPool2x2' in kinds(fast)
  fast.set_weights(model.get_weights())
  inputs = [rng.normal(3, 2, (4, 12, 12, 2)), np.array([[10], [20], [30], [7]])]
  np.testing.assert_allclose(fast(inputs), model(inputs), rtol=1e-6)


def wide_chain(filters=64, **options):
  usual = {'padding': 'same', 'activation': 'relu'}
  return chain(
    layers.Conv2D(4, 3, padding='same'),
    *conv_pool(filters, **{**usual, **options}),
    *conv_pool(64, padding='same'),
    layers.GlobalAveragePooling2D(keepdims=True),
    layers.Conv2D(3, 1),
  )


def test_wide_convolutions_are_computed_by_winograd_and_compiled():
  model = wide_chain()
  fast = choose.fast_model(model)
  assert fast.jit_compile
  assert kinds(fast.model)[:3] == ['PatchConv2D', *['WinogradConvPool2D'] * 2]
  check_equivalent(model, fast.model)
  assert 'Conv2D' in kinds(choose.fast_model(model, 'false').model)


@pytest.mark.parametrize(
  'options', [{'filters': 32}, {'kernel': 5}, {'padding': 'valid'}]
)
def test_a_convolution_that_is_not_wide_is_not_compiled(options):
  model = wide_chain(**options)
  fast = choose.fast_model(model)
  assert not fast.jit_compile
  check_equivalent(model, fast.model)


@pytest.mark.parametrize('layer', [layers.GRU, layers.LSTM, layers.SimpleRNN])
def test_recurrent_models_are_compiled(layer):
  """But not with dropout, and not on a GPU."""

  def model(**options):
    return keras.Sequential(
      [
        keras.Input((5,)),
        layers.Embedding(9, 4),
        layers.Bidirectional(layer(6, **options)),
        layers.Dense(3),
      ]
    )

  assert choose.fast_model(model()).jit_compile
  assert choose.fast_model(model()).per_example
  assert not choose.fast_model(model(dropout=0.1)).jit_compile
  assert not choose.fast_model(model(recurrent_dropout=0.1)).jit_compile
  assert not choose.fast_model(model(), on_gpu=True).jit_compile


@pytest.mark.parametrize('units, compiled', [(1000, True), (3000, False)])
def test_large_dense_models_are_not_compiled(units, compiled):
  model = keras.Sequential(
    [keras.Input((10,)), layers.Dense(1000), layers.Dense(units)]
  )
  assert choose.fast_model(model).jit_compile == compiled


def test_model_without_convolutions_is_compiled():
  dense = keras.Sequential([keras.Input((8,)), layers.Dense(3)])
  assert choose.fast_model(dense)[:2] == (dense, True)
  entries = [keras.Input((4,)), keras.Input((4,))]
  both = layers.Dense(3)(layers.Concatenate()(entries))
  functional = keras.Model(entries, both)
  assert choose.fast_model(functional)[:2] == (functional, True)


@keras.saving.register_keras_serializable('tests')
class Dense(keras.layers.Layer):
  """A user layer with the name of a Keras layer."""

  def call(self, inputs):
    return inputs


class Subclassed(keras.Model):
  def __init__(self):
    super().__init__()
    self.dense = layers.Dense(3)

  def call(self, inputs):
    return self.dense(inputs)


def subclassed():
  model = Subclassed()
  model(np.zeros((1, 8), np.float32))
  return model


UNKNOWN = {
  'Lambda': lambda: keras.Sequential(
    [keras.Input((8,)), layers.Lambda(lambda x: x), layers.Dense(3)]
  ),
  'user layer': lambda: keras.Sequential(
    [keras.Input((8,)), Dense(), layers.Dense(3)]
  ),
  'subclassed model': subclassed,
}


@pytest.mark.parametrize('make', UNKNOWN.values(), ids=UNKNOWN)
def test_unknown_layers_are_not_compiled(make):
  model = make()
  assert choose.fast_model(model)[:2] == (model, False)


def test_chain_with_unknown_layers_is_not_compiled():
  model = chain(*conv_pool(), Dense())
  assert not choose.fast_model(model).jit_compile


def test_jit_compile_is_forced():
  model = lenet5.lenet5()
  on, off = choose.fast_model(model, 'true'), choose.fast_model(model, 'false')
  assert on.jit_compile and not off.jit_compile
  for fast, lowering in (on, 'matmul'), (off, 'conv'):
    folded = [w for w in fast.model.layers if 'Folded' in type(w).__name__]
    assert [w.lowering for w in folded] == [lowering, lowering]
  check_equivalent(model, off.model, (28, 28, 1))


@pytest.mark.parametrize(
  'make', [lenet5.lenet5, light_vgg.light_vgg, lambda: wide_chain(32)]
)
def test_without_xla_layers_are_native_with_onednn(make, monkeypatch):
  model = make()
  assert choose.fast_model(model, 'false').model is not model
  monkeypatch.setattr(hardware, 'uses_onednn', lambda: True)
  native, auto = choose.fast_model(model, 'false'), choose.fast_model(model)
  assert native[:2] == (model, False)
  assert auto.jit_compile == (auto.model is not model)


def test_convolutions_are_native_on_a_gpu():
  model = lenet5.lenet5()
  assert choose.fast_model(model, on_gpu=True)[:2] == (model, False)


def test_precision_is_kept():
  model = chain(*conv_pool(dtype='mixed_bfloat16'))
  fast = choose.fast_model(model).model
  assert isinstance(fast.layers[0], folded_conv.FoldedConvPool2D)
  assert fast.layers[0].compute_dtype == 'bfloat16'


def test_unknown_jit_compile_is_refused():
  with pytest.raises(errors.InputError, match=r'^jit_compile=yes: '):
    choose.fast_model(lenet5.lenet5(), 'yes')


def test_which_models_process_each_example_independently():
  def known(*middle):
    return choose.fast_model(chain(*middle)).per_example

  assert known() and known(*conv_pool()) and known(layers.Dropout(0.5))
  assert choose.fast_model(light_vgg.light_vgg()).per_example
  assert not known(layers.BatchNormalization())
  assert not known(layers.Lambda(lambda x: x - keras.ops.mean(x, axis=0)))


def test_stacked_convolutions_become_products():
  """Folded if possible, also on a GPU; by patches otherwise."""
  for on_gpu in (False, True):
    lenet = choose.fast_model(lenet5.lenet5(), on_gpu=on_gpu, stacked=True)
    assert kinds(lenet.model).count('FoldedConvPool2D') == 2
    model = light_vgg.light_vgg((16, 16, 3))
    vgg = choose.fast_model(model, on_gpu=on_gpu, stacked=True)
    assert kinds(vgg.model).count('PatchConv2D') == 6
    assert vgg.jit_compile
    check_equivalent(model, vgg.model, (16, 16, 3))
  off = choose.fast_model(lenet5.lenet5(), 'false', stacked=True).model
  assert {layer.lowering for layer in off.layers[1:3]} == {'matmul'}


def normalised_residual():
  entry = keras.Input((12, 12, 2))
  x = layers.Conv2D(4, 3, padding='same', activation='relu')(entry)
  y = layers.BatchNormalization()(layers.Conv2D(4, 3, padding='same')(x))
  x = layers.GlobalAveragePooling2D()(layers.Add()([x, y]))
  return keras.Model(entry, layers.Dense(3)(layers.Dropout(0.1)(x)))


def test_stacked_model_that_is_not_a_chain():
  model = normalised_residual()
  fast = choose.fast_model(model, stacked=True)
  assert kinds(fast.model).count('PatchConv2D') == 2
  assert not fast.jit_compile and not fast.per_example
  check_equivalent(model, fast.model)


@pytest.mark.parametrize(
  'model',
  [chain(), chain(layers.Conv2D(4, 3, groups=2))],
  ids=['no convolution', 'groups'],
)
def test_no_convolution_to_replace_by_patches(model):
  assert choose.to_patches(model) is None
