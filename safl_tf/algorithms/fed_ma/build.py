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
  """Builds FedMA: matched averaging.

  Args:
    fedma_matching: 'hungarian' keeps layer widths, 'bbp' may grow layers.
    fedma_schedule: 'layerwise' or 'oneshot'.
    fedma_average: 'mean' or 'map'.
    fedma_gamma: how readily 'bbp' opens units.
    fraction: R, the share of clients in a pass.
    clients_per_round: s, their number, instead of R.
  """
  return dataclasses.replace(
    fed_avg.build_fed_avg(fraction, clients_per_round),
    driver=FedMA(
      fedma_matching, fedma_schedule, fedma_average, gamma=fedma_gamma
    ),
  )
