"""What can be known of rounds on a GPU without one.

TensorFlow lists a GPU. Everything is then built and traced as on a GPU, and
TensorFlow computes on the CPU what it is asked to compute there. Where there is
a GPU, it is used.
"""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

import safl_tf
from safl_tf.core import batching, client_config, process
from safl_tf.data import client_data
from safl_tf.models import char_gru, lenet5, light_vgg, mlp
from safl_tf.training import evaluation
from tests import gpu_kernels, marks, tiny
from tests.core import test_executors

pytestmark = pytest.mark.skipif(
  not tf.test.is_built_with_cuda(),
  reason='this TensorFlow has no GPU kernels (it was built without CUDA)',
)
NO_GPU = 'there is no GPU; see docs/how_to/gpus.md'
CONFIG = client_config.LocalConfig(
  local_epochs=1, batch_size=8, learning_rate=0.02
)
ALGORITHMS = {
  'SAFL': safl_tf.build_safl(),
  'Extended SAFL': test_executors.EXTENDED,
  'SCAFFOLD': safl_tf.build_scaffold(),
  'FedProx': safl_tf.build_fed_prox(),
}


def with_dropout():
  return keras.Sequential(
    [
      keras.Input((tiny.FEATURES,)),
      keras.layers.Dense(6, activation='relu'),
      keras.layers.Dropout(0.2),
      keras.layers.Dense(tiny.CLASSES),
    ]
  )


def texts(sizes=(9, 4, 13)):
  """Characters, padded on the right, to predict the next of."""
  rng = np.random.default_rng(0)
  x = rng.integers(1, 6, (sum(sizes), 5), np.int32)
  x[::2, 3:] = 0
  parts = np.split(np.arange(len(x)), np.cumsum(sizes)[:-1])
  return client_data.ClientData.from_arrays(x, np.roll(x, -1, 1), parts)


images = test_executors.images
MODELS = {
  'LeNet-5': (lenet5.lenet5, lambda: images((28, 28, 1))),
  'Light VGG': (
    functools.partial(light_vgg.light_vgg, (8, 8, 3)),
    lambda: images((8, 8, 3)),
  ),
  'MLP': (functools.partial(mlp.mlp, (8,), 3), tiny.clients),
  'MLP with dropout': (with_dropout, tiny.clients),
  'batch norm': (
    test_executors.normalised_images,
    lambda: images((8, 8, 1)),
  ),
  'GRU': (functools.partial(char_gru.char_gru, (5,), 6, units=4), texts),
}
# An algorithm's operations are the same for all models.
ROUNDS = [
  ('LeNet-5', 'Extended SAFL'),
  ('Light VGG', 'SCAFFOLD'),
  ('MLP', 'FedProx'),
  ('MLP with dropout', 'Extended SAFL'),
  ('batch norm', 'SAFL'),
  ('GRU', 'SAFL'),
]
EXECUTORS = ('threads', 'vectorized')


@pytest.fixture
def gpu(monkeypatch):
  """TensorFlow lists a GPU."""
  listed = tf.config.list_logical_devices
  if listed('GPU'):
    return
  one = tf.config.LogicalDevice('/device:GPU:0', 'GPU')
  monkeypatch.setattr(
    tf.config,
    'list_logical_devices',
    lambda kind=None: [one] if kind == 'GPU' else listed(kind),
  )


def make(model, algorithm, executor, device='gpu:0'):
  build, clients = MODELS[model]
  options = {'stack': gpu_kernels.STACK} if executor == 'vectorized' else {}
  return process.FederatedProcess(
    build,
    clients(),
    ALGORITHMS[algorithm],
    config=CONFIG,
    executor=executor,
    device=device,
    **options,
  )


def traced(trainer):
  """A round as the function that the executor calls."""
  compiled = trainer.trainer_of(None)._executor._rounds[0]
  compiled.trace()
  return compiled._function._function.get_concrete_function()


@pytest.mark.parametrize(
  'executor, model, algorithm',
  marks.some(
    [(executor, *names) for executor in EXECUTORS for names in ROUNDS],
    [('threads', *names) for names in ROUNDS]
    + [('vectorized', *names) for names in ROUNDS if names[0] != 'Light VGG'],
  ),
)
def test_rounds_are_for_gpus(gpu, model, algorithm, executor):
  """Each operation has a GPU kernel, or XLA compiles all of them."""
  trainer = make(model, algorithm, executor)
  assert trainer.device.endswith('GPU:0')
  stacked = trainer.arithmetic['stack']
  assert stacked == (gpu_kernels.STACK if executor == 'vectorized' else None)
  function = traced(trainer)
  assert gpu_kernels.placed_on_cpu(function) == []
  if trainer.jit_compile:
    assert gpu_kernels.lower_for_gpu(function).startswith('HloModule')
  else:
    missing = gpu_kernels.without_kernel(function)
    assert missing == [], f'{model}, {algorithm}, {executor}: {missing}'


def test_all_that_a_gpu_gathers_is_in_its_memory(gpu):
  """TensorFlow would copy int32 to the GPU in every step."""
  for model in ('batch norm', 'GRU'):
    trainer = make(model, 'SAFL', 'threads')
    total = len(trainer.clients.y)
    examples = [
      tensor.dtype
      for tensor in traced(trainer).inputs
      if tensor.shape[:1] == [total]
    ]
    assert len(examples) == 2
    assert not {tf.int32, tf.uint8} & set(examples)


@pytest.mark.parametrize('dtype', ['uint8', 'int8', 'int16', 'uint16', 'int32'])
def test_examples_keep_all_their_values(gpu, dtype):
  limits = np.iinfo(dtype)
  values = np.linspace(limits.min, limits.max, 256).astype(dtype)
  array = batching.DeviceArray(values, '/device:GPU:0')
  rows = array.take(tf.constant([0, 255, *range(256)]))
  assert rows.dtype == dtype
  np.testing.assert_array_equal(rows[2:], values)
  assert list(rows[:2].numpy()) == [limits.min, limits.max]


@pytest.mark.parametrize('executor', EXECUTORS)
def test_same_results_as_for_a_cpu(gpu, executor):
  """The round for a GPU is another one; here the CPU computes both."""
  names = ('batch norm', 'SAFL')
  expected, _ = test_executors.run(make(*names, 'serial', device='cpu'))
  state, _ = test_executors.run(make(*names, executor))
  np.testing.assert_allclose(
    state.z_bar, expected.z_bar, **test_executors.CLOSE
  )


def test_evaluation_is_for_gpus(gpu):
  trainer = make('LeNet-5', 'SAFL', 'threads')
  predict = evaluation.Predictor(
    trainer.model, trainer.clients.x, False, trainer.device
  )
  function = predict._function._function.get_concrete_function()
  assert gpu_kernels.placed_on_cpu(function) == []
  assert gpu_kernels.without_kernel(function) == []


def test_a_gru_uses_cudnn(gpu):
  """As Keras does where there is a GPU; XLA cannot compile it."""
  function = traced(make('GRU', 'SAFL', 'threads'))
  types = {op.type for op in gpu_kernels.operations(function)}
  assert {'CudnnRNNV3', 'CudnnRNNBackpropV3'} <= types
  with pytest.raises(ValueError, match='CudnnRNNV3'):
    gpu_kernels.lower_for_gpu(function)


def concrete(function, *specs):
  return tf.function(function, autograph=False).get_concrete_function(*specs)


def test_operations_without_a_kernel_are_found():
  """Also those in the body of a loop, and by their dtypes."""

  def looped(words):
    add = lambda i, n: (i + 1, n + tf.strings.length(words))
    return tf.while_loop(lambda i, n: i < 3, add, (0, 0))[1]

  words = concrete(looped, tf.TensorSpec([], tf.string))
  assert gpu_kernels.without_kernel(words) == ['StringLength']
  with pytest.raises(ValueError, match='on XLA_GPU_JIT'):
    gpu_kernels.lower_for_gpu(words)
  for dtype, missing in ((tf.uint8, 1), (tf.float16, 0)):
    gathered = concrete(lambda a: tf.gather(a, [0]), tf.TensorSpec([2], dtype))
    assert len(gpu_kernels.without_kernel(gathered)) == missing
  drawn = lambda size: concrete(
    lambda seeds: tf.vectorized_map(
      lambda seed: tf.random.stateless_uniform(
        [size], seed, None, None, tf.uint32, 'philox'
      ),
      seeds,
      warn=False,
    ),
    tf.TensorSpec([gpu_kernels.STACK, 2], tf.int32),
  )
  assert gpu_kernels.without_kernel(drawn(4)) == []  # as few as seeds
  assert gpu_kernels.without_kernel(drawn(100)) == [
    'TensorListStack of element_dtype=uint32'
  ]


def test_operations_on_the_cpu_are_found():
  def placed(x):
    with tf.device('/CPU:0'):
      return tf.cond(x > 0, lambda: tf.exp(x), lambda: x)

  found = gpu_kernels.placed_on_cpu(concrete(placed, tf.TensorSpec([])))
  assert any(name.startswith('Exp ') for name in found)


@pytest.mark.skipif(not tf.config.list_physical_devices('GPU'), reason=NO_GPU)
@pytest.mark.parametrize('executor', EXECUTORS)
@pytest.mark.parametrize('model, algorithm', ROUNDS)
def test_rounds_on_a_gpu(model, algorithm, executor):
  """The results of a CPU, up to rounding."""
  tf.config.experimental.enable_tensor_float_32_execution(False)
  names = (model, algorithm)
  expected, _ = test_executors.run(make(*names, 'serial', device='cpu'))
  state, _ = test_executors.run(make(*names, executor))
  np.testing.assert_allclose(
    state.z_bar, expected.z_bar, **test_executors.CLOSE
  )
