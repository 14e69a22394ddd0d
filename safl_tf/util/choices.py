"""The names that users choose from.

Programs check flags against them before they import TensorFlow.
"""

ALGORITHMS = (
  'centralized',
  'local_only',
  'fedsgd',
  'fedavg',
  'fedprox',
  'safl',
  'extended_safl',
  'ida',
  'ida_safl',
  'astw',
  'astw_safl',
  'fedma',
  'scaffold',
  'scaffold_safl',
  'feddyn',
)
ANNEAL_CLOCKS = ('round', 'step')
ATTACKS = (
  'none',
  'one_label',
  'label_flip',
  'sign_flip',
  'scale',
  'noise',
  'nonfinite',
)
BUNDLED_DATASETS = (
  'mnist_sample',
  'diabetes',
  'synthetic_multi_label',
  'python_docs',
)
DATASETS = (
  'mnist_sample',
  'mnist',
  'fashion_mnist',
  'cifar10',
  'speech_commands',
  *BUNDLED_DATASETS[1:],
)
DATASET_FORMS = ('tfds:NAME', 'npz:FILE', 'csv:FILE', 'folder:FOLDER')
TFDS_DATASETS = ('mnist', 'fashion_mnist', 'cifar10')
CLIENT_STORES = ('ram', 'mmap')
EXECUTORS = ('auto', 'serial', 'threads', 'vectorized', 'ray')
EXPORTS = ('both', 'savedmodel', 'keras', 'tflite', 'all', 'none')
FEDMA_AVERAGES = ('mean', 'map')
FEDMA_MATCHINGS = ('hungarian', 'bbp')
FEDMA_SCHEDULES = ('layerwise', 'oneshot')
AGGREGATORS = (
  'auto',
  'size',
  'median',
  'trimmed_mean',
  'krum',
  'multi_krum',
  'geometric_median',
  'ida',
  'astw',
)
FIGURES = ('png', 'pdf', 'svg', 'dark.png', 'dark.svg')
IDA_NORMS = ('l1', 'l2')
IDA_REFERENCES = ('mean', 'size')
INITS = ('auto', 'per_client', 'shared')
JIT_COMPILES = ('auto', 'true', 'false')
LOSSES = ('categorical', 'paper')
LOSS_REDUCTIONS = ('sum', 'mean')
MISSING = ('wait', 'drop')
MIXED_PRECISIONS = ('none', 'bfloat16', 'float16')
MIX_GRANULARITIES = ('element', 'model')
MODELS = ('lenet5', 'light_vgg', 'mlp', 'char_gru')
OPTIMIZER_CLOCKS = ('participation', 'run')
OPTIMIZERS = (
  'sgd',
  'momentum',
  'nesterov',
  'adagrad',
  'adam',
  'adamw',
  'rmsprop',
)
PARTITIONS = (
  'labels',
  'iid',
  'dirichlet',
  'shards',
  'quantity',
  'client',
  'biased',
)
SERVER_OPTIMIZERS = ('adagrad', 'adam', 'momentum', 'sgd', 'yogi')
TASKS = ('classification', 'multi_label', 'regression')
SPEECH_WORDS = ('all', 'commands')
