"""How FedMA matches units across devices: its settings."""

import dataclasses

from safl_tf import checks, names


@dataclasses.dataclass(frozen=True)
class Match:
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
    by_size: whether devices count by the size of their data, not equally.
    gamma: how readily 'bbp' opens units.
    sweeps: at most so many over the devices.
  """

  matching: str = 'hungarian'
  schedule: str = 'layerwise'
  average: str = 'mean'
  by_size: bool = False
  gamma: float = 7.0
  sweeps: int = 5

  def __post_init__(self) -> None:
    checks.choice('fedma_matching', self.matching, names.FEDMA_MATCHINGS)
    checks.choice('fedma_schedule', self.schedule, names.FEDMA_SCHEDULES)
    checks.choice('fedma_average', self.average, names.FEDMA_AVERAGES)
    checks.real('fedma_gamma', self.gamma, 0, open_low=True)
    checks.integer('fedma_sweeps', self.sweeps, low=1)
