"""How FedMA matches units across clients: its settings."""

import dataclasses

from safl_tf.util import choices, validation


@dataclasses.dataclass(frozen=True)
class MatchConfig:
  """Matched averaging (Wang, Yurochkin et al. 2020).

  Attributes:
    matching: 'hungarian' keeps the layers' widths: units are assigned one to
      one, and averaged, until no assignment changes. 'bbp' is the authors'
      Bayesian non-parametric rule, which may open new units.
    schedule: 'layerwise' matches a layer in each round, with the layers below
      frozen, so that a pass over N layers takes N rounds; 'oneshot' matches all
      layers in one round.
    average: of matched units, 'mean', or 'map' for the shrunken mean that the
      prior of 'bbp' gives.
    by_size: whether clients count by the size of their data, not equally.
    gamma: how readily 'bbp' opens units.
    sweeps: at most so many over the clients.
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
    validation.real('fedma_gamma', self.gamma, 0, open_low=True)
    validation.integer('fedma_sweeps', self.sweeps, low=1)
