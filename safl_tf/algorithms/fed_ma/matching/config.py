"""The configuration of FedMA's matching."""

import dataclasses

from safl_tf.util import choices, errors, validation


@dataclasses.dataclass(frozen=True)
class MatchConfig:
  """Matched averaging (Wang, Yurochkin et al. 2020).

  Attributes:
    matching: 'hungarian' keeps layer widths: it assigns units one to one and
      averages them, until no assignment changes. 'bbp' is the authors' Bayesian
      non-parametric rule, which may open new units.
    schedule: 'layerwise' matches one layer in each round, with the layers below
      frozen, so a pass over N layers takes N rounds; 'oneshot' matches all
      layers in every round.
    average: of matched units: 'mean', or 'map' for the mean shrunken by the
      prior of 'bbp'.
    by_size: whether clients are weighted by their numbers of examples.
    gamma: how readily 'bbp' opens units.
    sweeps: the maximum number of sweeps over the clients.
  """

  matching: str = 'hungarian'
  schedule: str = 'layerwise'
  average: str = 'mean'
  by_size: bool = False
  gamma: float = 7.0
  sweeps: int = 5

  def __post_init__(self) -> None:
    validation.choice('fedma_matching', self.matching, choices.FEDMA_MATCHINGS)
    validation.choice('fedma_schedule', self.schedule, choices.FEDMA_SCHEDULES)
    validation.choice('fedma_average', self.average, choices.FEDMA_AVERAGES)
    validation.limited('fedma_gamma', self.gamma)
    if self.matching != 'bbp' and self.gamma != MatchConfig.gamma:
      hint = f'has no effect on {self.matching} matching; it is for bbp'
      raise errors.InputError('fedma_gamma', self.gamma, hint)
    validation.integer('fedma_sweeps', self.sweeps, low=1)
