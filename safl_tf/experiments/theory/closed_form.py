"""The mean squared error itself, where every client has H_k = h·I.

Then an error e is multiplied by 1 - αh in every step, mean and deviations of
clients' models go their own ways, and both have a recursion without remainder.
"""

from typing import Any

import numpy as np

from safl_tf.util import validation


def mse(
  rates: Any,
  n: int,
  curvature: float,
  variance: float,
  epsilon: float,
  p: Any,
  offset: float,
  spread: float,
) -> np.ndarray:
  """E‖ŵ_t - w*‖² before the first round and after every round's mixing.

  V = E‖ŵ - w*‖² and W = E[(1/n)·Σ_k ‖w^(k) - ŵ‖²]. A step of rate α does

    V ← (1-αh)²·V + α²σ²/n,   W ← (1-αh)²·W + α²σ²·(1 - 1/n)

  and mixing, with v = 1 - u of mean m_1 = p(1-ε) and mean square m_2 = p(1-ε)²,

    V ← V + (m_2 - m_1²)·W/n,   W ← m_2·W - (m_2 - m_1²)·W/n

  Args:
    rates: α of every step [rounds, q].
    n: clients, of equal weight.
    curvature: h.
    variance: σ² of every client.
    epsilon: ε.
    p: the probability that an element is kept local, after each round
      [rounds], or one for all.
    offset: ‖E w_0^(k) - w*‖².
    spread: E‖w_0^(k) - E w_0^(k)‖².

  Returns:
    [rounds + 1].
  """
  validation.integer('n', n, low=1)
  rates = np.asarray(rates, float)
  v, w = offset + spread / n, spread * (1 - 1 / n)
  found = [v]
  for alphas, kept in zip(rates, np.broadcast_to(p, len(rates)), strict=True):
    for alpha in alphas:
      shrink, noise = (1 - alpha * curvature) ** 2, alpha**2 * variance
      v = shrink * v + noise / n
      w = shrink * w + noise * (1 - 1 / n)
    m1, m2 = kept * (1 - epsilon), kept * (1 - epsilon) ** 2
    scatter = (m2 - m1**2) * w / n
    v, w = v + scatter, m2 * w - scatter
    found.append(v)
  return np.array(found)
