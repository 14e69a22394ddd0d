"""The paper's experiments by name, and about how long they take.

`paper` has the paper's size. `cpu` is what two cores do in less than half an
hour. `smoke` takes seconds and only shows that everything works.
"""

from collections.abc import Callable
from typing import NamedTuple

from safl_tf.experiments.paper import plans, runs


class Experiment(NamedTuple):
  """One of the paper's tables or figures.

  Attributes:
    name: as in `paper_numbers.json`.
    title: what it shows.
    place: where it is in the paper.
    about: the settings, and how gaps of the paper were read.
    plan: scale -> what to run.
  """

  name: str
  title: str
  place: str
  about: str
  plan: Callable[[str], runs.Plan]


_ALL = (
  Experiment(
    'convergence_mnist',
    'Test accuracy by round on MNIST',
    'Figure 5a',
    'LeNet-5 on n = 40, 80 and 120 clients, all of them in every round. The '
    'level of centralised training is its last accuracy.',
    plans.convergence_mnist,
  ),
  Experiment(
    'convergence_speech',
    'Test accuracy by round on Google Speech Commands',
    'Figure 5b',
    'Light VGG on the MFCCs of 30 words, n = 40, 80 and 120 clients, all of '
    'them in every round.',
    plans.convergence_speech,
  ),
  Experiment(
    'early_accuracy',
    'Top-1 and top-5 accuracy in round 50',
    'Table III',
    'n = 80 clients; LeNet-5 on MNIST, Light VGG on the others.',
    plans.early_accuracy,
  ),
  Experiment(
    'epsilon_temperature',
    'Effect of ε and L',
    'Table IV',
    'LeNet-5 on MNIST, n = 50 clients, round 50.',
    plans.epsilon_temperature,
  ),
  Experiment(
    'batch_size',
    'Accuracy by batch size',
    'Table V',
    'LeNet-5 on MNIST, n = 100 clients, round 100. Half of the data set is '
    'read as 300 examples a client on average, all of it as 600.',
    plans.batch_size,
  ),
  Experiment(
    'fraction',
    'Share R of the clients in a round',
    'Figure 6',
    'LeNet-5 on MNIST. The paper does not give n; it is read as 100, as in '
    'the tables beside it.',
    plans.fraction,
  ),
  Experiment(
    'uploads',
    'Uploads and accuracy of Extended SAFL',
    'Table VI',
    'LeNet-5 on MNIST, n = 100 clients, s = 50 of them in a round, which the '
    "paper's totals imply. The paper does not give ν: several are tried, and "
    "the table has the one whose share of uploads is nearest to the paper's.",
    plans.uploads,
  ),
  Experiment(
    'biased',
    'With and without clients that hold one digit',
    'Figure 4',
    'LeNet-5 on MNIST. 40 clients hold two to seven digits; with bias there '
    'are 40 more that hold nothing but the digit 2. The paper does not give '
    'these numbers.',
    plans.biased,
  ),
  Experiment(
    'techniques',
    'SAFL beside other techniques, and combined with them',
    'Figure 7',
    'LeNet-5 on MNIST. The paper does not give n and s; they are read as 100 '
    'and 50.',
    plans.techniques,
  ),
  Experiment(
    'sensitivity',
    "What SAFL's lead over FedAvg depends on",
    'not in the paper',
    'LeNet-5 on MNIST, round 50. The rate is that on the mean loss of a '
    'batch: α times the batch size where the loss is summed, as by default. '
    'Momentum is 0.9, with a tenth of α, so that its rate is the same.',
    plans.sensitivity,
  ),
)

EXPERIMENTS = {experiment.name: experiment for experiment in _ALL}


def table() -> list[list[str]]:
  """Names, places in the paper and about how long each scale takes."""
  lines = [
    [
      e.name,
      e.place,
      e.title,
      *(runs.told(e.plan(scale).seconds()) for scale in runs.SCALES),
    ]
    for e in _ALL
  ]
  return [
    ['experiment', 'in the paper', 'what it shows', *runs.SCALES],
    *lines,
  ]
