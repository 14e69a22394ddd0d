"""The names a user may choose among, in one place and without TensorFlow.

Programs check flags against them before anything slow is imported.
"""

ALGORITHMS = ('fedavg', 'safl', 'extended_safl')
ANNEAL_CLOCKS = ('round', 'step')
DATASETS = ('mnist_sample', 'mnist', 'fashion_mnist', 'cifar10')
DEVICE_STORES = ('ram', 'mmap')
EXECUTORS = ('auto', 'serial', 'threads', 'vectorized')
EXPORTS = ('both', 'savedmodel', 'keras', 'none')
INITS = ('per_device', 'shared')
JIT_COMPILES = ('auto', 'true', 'false')
LOSSES = ('categorical', 'paper')
LOSS_REDUCTIONS = ('sum', 'mean')
MIXED_PRECISIONS = ('none', 'bfloat16', 'float16')
MIX_GRANULARITIES = ('element', 'model')
MODELS = ('lenet5', 'light_vgg')
OPTIMIZERS = (
  'sgd',
  'momentum',
  'nesterov',
  'adagrad',
  'adam',
  'adamw',
  'rmsprop',
)
PARTITIONS = ('labels', 'iid')
