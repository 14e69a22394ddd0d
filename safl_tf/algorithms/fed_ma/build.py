"""FedMA (Wang, Yurochkin et al. 2020) as an algorithm with its own driver."""

import dataclasses

from safl_tf.algorithms import fed_avg
from safl_tf.algorithms.fed_ma import rounds
from safl_tf.algorithms.fed_ma.matching import config
from safl_tf.core import algorithm as algorithm_lib
from safl_tf.core import client_trainer
from safl_tf.rules import aggregate, client_work, gate, mix
from safl_tf.util import errors


class FedMA(config.MatchConfig):
  """Runs FedMA's rounds in place of `FederatedProcess.next`."""

  def check(self, algorithm: algorithm_lib.Algorithm) -> None:
    """Refuses rules that FedMA cannot be combined with."""
    for name in ('shared_start', 'pooled', 'alone'):
      if getattr(algorithm, name):
        hint = f'cannot be combined with {name}'
        raise errors.InputError('driver', 'FedMA', hint)
    work, plain = algorithm.client_work, algorithm_lib.PLAIN_TRAINING
    for name in ('init', 'receives', 'end', 'full_batch'):
      if getattr(work, name) is not getattr(plain, name):
        hint = "FedMA's clients keep and upload their models, nothing else"
        raise errors.InputError(f'client_work.{name}', 'given', hint)
    require = algorithm_lib.require_default
    hint = 'FedMA is an aggregator; pass no other'
    require(algorithm, 'aggregate', aggregate.by_size(), hint)
    if self.matching == 'bbp':
      hint = (
        "FedMA with matching='bbp' changes the layers' widths, and models of "
        'different shapes can be neither mixed nor compared; use '
        "matching='hungarian' and schedule='oneshot'"
      )
    elif self.schedule == 'layerwise':
      hint = (
        'FedMA with a layerwise schedule has no global model within a pass to '
        "mix or compare with; use schedule='oneshot'"
      )
    else:
      return
    require(algorithm, 'mix', mix.replace(), hint)
    require(algorithm, 'gate', gate.always(), hint)

  def adapt(self, work: client_work.ClientWork) -> client_work.ClientWork:
    """Freezes the layers that are matched already."""
    if self.schedule != 'layerwise':
      return work
    return client_work.compose(work, client_work.freeze())

  def bind(
    self,
    trainer: client_trainer.ClientTrainer,
    algorithm: algorithm_lib.Algorithm,
  ) -> rounds.MatchedRounds:
    """Returns the rounds of a process."""
    return rounds.MatchedRounds(trainer, algorithm, self)


@algorithm_lib.published('fedma')
def build_fed_ma(
  fedma_matching: str = 'hungarian',
  fedma_schedule: str = 'layerwise',
  fedma_average: str = 'mean',
  fedma_gamma: float = 7.0,
  fraction: float = 1.0,
  clients_per_round: int | None = None,
) -> algorithm_lib.Algorithm:
  """Builds FedMA: matches clients' units before it averages them.

  FedMA is due to Wang, Yurochkin et al. 2020. The model must be a chain of
  Conv2D and Dense layers, with activations, pooling, dropout and flattening
  between them. Layer by layer, a new global model takes a pass of as many
  rounds as there are such layers.

  Args:
    fedma_matching: 'hungarian' keeps layer widths, 'bbp' may grow layers.
    fedma_schedule: 'layerwise' matches one layer per round, with the same
      clients for all layers; 'oneshot' matches all layers in every round.
    fedma_average: 'mean' of matched units, or 'map', the shrinkage average of
      the authors' code.
    fedma_gamma: γ > 0; with a larger value 'bbp' opens more units.
    fraction: R in (0, 1], the share of clients in a pass.
    clients_per_round: s, their number, instead of R.

  Example:
    ```python
    result = safl_tf.train(
      model_fn, clients, safl_tf.build_fed_ma(fedma_schedule='oneshot'),
      test_data=(x_test, y_test), rounds=3)
    ```
  """
  return dataclasses.replace(
    fed_avg.build_fed_avg(fraction, clients_per_round),
    driver=FedMA(
      fedma_matching, fedma_schedule, fedma_average, gamma=fedma_gamma
    ),
  )
