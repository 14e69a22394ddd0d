"""Settings, run in many independent trials and compared with the bounds.

`FederatedProcess` runs all trials of a setting at once. The theory's w_t^(k) is
a client's model after it mixed in z̄_t, which the process does at the start of
the next round. Hence errors are measured on the models that clients would start
the next round from: the same rule, the same seeds, the same draws.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from safl_tf.algorithms import fed_avg
from safl_tf.core import client_config, process, seeds
from safl_tf.experiments.theory import bounds, testbed
from safl_tf.rules import mix

if TYPE_CHECKING:
  import pandas as pd

# A measured error exceeds a bound if it does by so many standard errors.
MAX_STANDARD_ERRORS = 4.0
_TOLERANCE = 1e-9  # relative rounding error of an exact error


class Measurements(NamedTuple):
  """Squared errors and gradients at the start and after each round.

  Attributes:
    t: local steps taken [rounds + 1].
    squares: ‖ŵ_t - w*‖² of each trial [rounds + 1, trials].
    client_squares: Σ_k η_k‖w_t^(k) - w*‖² of each trial [rounds + 1, trials].
    gradient_squares: E‖∇F_k(w_t^(k)) + ξ‖² of each client [rounds + 1, n].
  """

  t: np.ndarray
  squares: np.ndarray
  client_squares: np.ndarray
  gradient_squares: np.ndarray


def constant_mix(epsilon: float, p: float) -> mix.Mix:
  """Returns SAFL's rule with a constant p: its clock is fixed at t = -ln p."""
  anneal = mix.anneal(epsilon, temperature=1.0)
  clock = math.inf if p == 0 else -math.log(p)

  def apply(
    seed: tf.Tensor, t: tf.Tensor, z_bar: tf.Tensor, z: tf.Tensor
  ) -> mix.Mixed:
    del t
    return anneal(seed, tf.constant(clock, tf.float64), z_bar, z)

  return apply


def build_process(
  setting: testbed.Setting, trials: int, executor: str = 'vectorized'
) -> process.FederatedProcess:
  """Builds the process that runs all trials of a setting at once.

  A batch holds all of a client's data.
  """
  rate: dict[str, Any] = {'learning_rate': setting.rate}
  if setting.decaying:
    schedules = keras.optimizers.schedules
    decay = schedules.InverseTimeDecay(setting.rate / 2, 2, 1.0)
    optimizer = keras.optimizers.SGD(decay)
    rate = {'optimizer': optimizer, 'optimizer_clock': 'run'}
  rule = constant_mix(setting.epsilon, setting.p)
  if setting.temperature is not None:
    rule = mix.anneal(setting.epsilon, setting.temperature)
  bed = setting.testbed
  return process.FederatedProcess(
    bed.model_fn(trials),
    bed.clients(),
    dataclasses.replace(fed_avg.build_fed_avg(), mix=rule),
    client_config.LocalConfig(
      local_epochs=setting.q,
      batch_size=int(bed.client_sizes.max()),
      loss_reduction='mean',
      **rate,
    ),
    executor=executor,
    stack=bed.n if executor == 'vectorized' else None,
    from_logits=True,
  )


def measure(
  trainer: process.FederatedProcess,
  bed: testbed.Testbed,
  rounds: int,
  seed: int = 0,
) -> Measurements:
  """Runs a process of `build_process` and measures after every round."""
  next_start = starting_points(trainer)
  state = trainer.initialize(seed)
  rows = [_measure(bed, _client_models(state, bed.n))]
  for _ in range(rounds):
    state, _ = trainer.next(state)
    rows.append(_measure(bed, next_start(state)))
  q = trainer.config.local_epochs
  columns = (np.array(column) for column in zip(*rows, strict=True))
  return Measurements(q * np.arange(rounds + 1), *columns)


def starting_points(
  trainer: process.FederatedProcess,
) -> Callable[[process.FederatedState], np.ndarray]:
  """Returns a function from a state to the next initial models [n, P]."""

  @tf.function(autograph=False)
  def apply(
    pairs: tf.Tensor, clocks: tf.Tensor, z_bar: tf.Tensor, z: tf.Tensor
  ) -> tf.Tensor:
    return tf.vectorized_map(
      lambda own: trainer.algorithm.mix(own[0], own[1], z_bar, own[2]).w,
      (pairs, clocks, z),
    )

  def next_start(state: process.FederatedState) -> np.ndarray:
    t, sizes = state.t + 1, trainer.clients.sizes
    role = seeds.Role.MIX
    pairs = [seeds.pair(state.seed, role, t, k) for k in range(len(sizes))]
    clocks = [trainer.config.clock(t, int(m)) for m in sizes]
    return apply(
      tf.constant(np.array(pairs)),
      tf.constant(clocks, tf.float32),
      tf.constant(state.z_bar),
      tf.constant(_client_models(state, len(sizes))),
    ).numpy()

  return next_start


def _client_models(state: process.FederatedState, n: int) -> np.ndarray:
  return np.stack([state.client_models[k] for k in range(n)])


def _measure(bed: testbed.Testbed, w: np.ndarray) -> tuple[np.ndarray, ...]:
  """Returns a row of each field of `Measurements` except t."""
  w = w.reshape(len(w), -1, bed.dimension).astype(np.float64)
  e, eta = w - testbed.MINIMISER, bed.eta
  average = np.tensordot(eta, e, axes=1)
  gradients = bed.gradients(w)
  return (
    (average**2).sum(axis=-1),
    eta @ (e**2).sum(axis=-1),
    (gradients**2).sum(axis=-1).mean(axis=-1) + bed.variances,
  )


def run(
  settings: Sequence[testbed.Setting],
  trials: int,
  rounds: int,
  seed: int,
  executor: str,
  on_start: Callable[[testbed.Setting], None],
) -> 'pd.DataFrame':
  """Runs every setting once and compares it with its bounds.

  Runs have as many communication rounds as given for q = 1; for other q, as
  many local steps. `on_start` is called with each setting before it runs.
  Returns the tables of `compare`, one below the other.
  """
  import pandas as pd

  measured: dict[testbed.Setting, Measurements] = {}  # studies share settings
  frames = []
  for setting in settings:
    on_start(setting)
    if setting not in measured:
      trainer = build_process(setting, trials, executor)
      count = max(1, rounds // setting.q)
      measured[setting] = measure(trainer, setting.testbed, count, seed)
    frames.append(compare(setting, measured[setting]))
  return pd.concat(frames, ignore_index=True)


def compare(setting: testbed.Setting, measured: Measurements) -> 'pd.DataFrame':
  """Compares measured errors with every bound that applies.

  (16), its remark and the corollary (17) bound ŵ_t, (20) bounds the clients'
  own models. Conditions of (16) and the remark are met if their proof covers
  this ε and p; all settings have α < 1/(2λ-μ).

  Returns:
    A row for each bound and t: the setting's parameters (NaN where not used;
    `config` has all of them), `bound_name`, `conditions` ('met' or 'not met'),
    `t`, `mse` and its `standard_error`, the `exact` error if known, the
    `bound`, and whether it `holds`.
  """
  import pandas as pd

  bed, t = setting.testbed, measured.t
  annealed = setting.temperature is not None
  squares = measured.client_squares if bed.wave else measured.squares
  mse = squares.mean(axis=1)
  error = squares.std(axis=1, ddof=1) / math.sqrt(squares.shape[1])
  exact = setting.exact_mse(len(t) - 1)
  exact = np.full(len(t), math.nan) if exact is None else exact
  frames = [
    pd.DataFrame(
      {
        'study': setting.study,
        'setting': setting.name,
        'n': bed.n,
        'mu': bed.mu,
        'lambda': bed.lam,
        'wave': bed.wave,
        'alpha': math.nan if setting.decaying else setting.rate,
        'alpha0': setting.rate if setting.decaying else math.nan,
        'epsilon': setting.epsilon,
        'p': math.nan if annealed else setting.p,
        'temperature': setting.temperature if annealed else math.nan,
        'q': setting.q,
        'bound_name': name,
        'conditions': 'met' if met else 'not met',
        't': t,
        'mse': mse,
        'standard_error': error,
        'exact': exact,
        'bound': bound,
        'holds': holds(mse, error, bound, exact),
        'config': str(setting),
      }
    )
    for name, met, bound in _bounds(setting, measured)
  ]
  return pd.concat(frames, ignore_index=True)


def holds(
  mse: np.ndarray, error: np.ndarray, bound: np.ndarray, exact: np.ndarray
) -> np.ndarray:
  """Returns where neither the measured nor the exact error exceeds the bound.

  `error` is the standard error of `mse`; `exact` is NaN where it is unknown.
  """
  within = mse - MAX_STANDARD_ERRORS * error <= bound
  return within & ~(exact > bound * (1 + _TOLERANCE))


def _bounds(
  setting: testbed.Setting, measured: Measurements
) -> Iterator[tuple[str, bool, np.ndarray]]:
  """Yields name, whether conditions are met, and values of each bound."""
  bed, t, rate = setting.testbed, measured.t, setting.rate
  problem = bounds.Problem(
    bed.mu, bed.eta.tolist(), bed.variances.tolist(), bed.zeta, bed.lam
  )
  if bed.wave:
    # A4 makes gradients grow with the distance from w*, so no σ_k² of A5 bounds
    # them everywhere; the largest mean square of the run does along the run.
    problem = dataclasses.replace(
      problem,
      mu=testbed.quasi_convexity(bed.mu, bed.wave),
      variance=measured.gradient_squares.max(axis=0).tolist(),
      lam=None,
    )
    yield '(20)', True, bounds.quasi_convex_bound(t, problem, rate)
  elif setting.decaying:
    met = rate / 2 < problem.max_rate
    unchecked = dataclasses.replace(problem, lam=None)
    yield '(17)', met, bounds.corollary_bound(t, unchecked, rate)
  else:
    epsilon, q = setting.epsilon, setting.q
    met = bool(bounds.condition_holds(epsilon, setting.p))
    if setting.temperature is not None:
      last = bounds.last_round(setting.temperature, epsilon=epsilon)
      met = bool(t[-1] <= last * q)
    p = setting.p_of_round(1)  # the largest gives the weakest bound
    yield '(16)', met, bounds.main_bound(t, problem, rate, epsilon, p, q)
    yield 'remark', met, bounds.remark_bound(t, problem, rate)
    yield 'Jensen', True, bounds.jensen_bound(t, problem, rate)
