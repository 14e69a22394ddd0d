"""The paper's two clients, whose average is worse than one of them.

  python -m examples.l1_example

Each client has one example and minimises its share of

  J(w; D) = Σ_(x, y) (y - xᵀw)² + ‖w‖₁                           (1)

exactly. FedAvg has both go on from the average of the two results. SAFL lets
the second client keep most of its own, which is the minimum of the sum.
"""

import math

import numpy as np

from safl_tf.core import seeds
from safl_tf.rules import mix

FIRST = (np.array([[0.25, 0.0]]), np.array([-1.0]))
SECOND = (np.array([[0.0, 1.5]]), np.array([1.0]))
BOTH = tuple(np.concatenate(parts) for parts in zip(FIRST, SECOND, strict=True))
EPSILON, TEMPERATURE = 0.3, 80.0

Data = tuple[np.ndarray, ...]  # x [m, 2] and y [m]


def cost(w: np.ndarray, data: Data) -> float:
  """J(w; D)."""
  x, y = data
  return float(((y - x @ w) ** 2).sum() + np.abs(w).sum())


def minimiser(data: Data) -> np.ndarray:
  """The w of least J, where no two elements of w meet in an example.

  Then every element has a problem of its own, a·w² - 2b·w + |w| with a = Σ x²
  and b = Σ xy, whose solution is sign(b)·max(|b| - ½, 0)/a.
  """
  x, y = data
  a, b = (x**2).sum(axis=0), x.T @ y
  shrunk = np.where(np.abs(b) > 0.5, b - np.sign(b) / 2, 0.0)
  return np.divide(shrunk, a, out=np.zeros_like(b), where=a > 0)


def average() -> np.ndarray:
  """What FedAvg's server makes of the two results."""
  return (minimiser(FIRST) + minimiser(SECOND)) / 2


def perturbed(epsilon: float = EPSILON) -> np.ndarray:
  """What SAFL's second client has if it keeps its own: ε·z̄ + (1-ε)·z."""
  return epsilon * average() + (1 - epsilon) * minimiser(SECOND)


def expected_cost(t: int) -> float:
  """E[J] of the second client's model after SAFL's mixing in round t."""
  p = math.exp(-t / TEMPERATURE)
  return p * cost(perturbed(), BOTH) + (1 - p) * cost(average(), BOTH)


def mixed(t: int, seed: int = 0) -> np.ndarray:
  """One draw of it, by the rule that trains real models."""
  rule = mix.anneal(EPSILON, TEMPERATURE)
  pair = seeds.pair(seed, seeds.Role.MIX, t, 1)
  return rule(pair, float(t), average(), minimiser(SECOND)).w.numpy()


def main() -> None:
  """Prints models, their costs and how far they are from the best."""
  best = minimiser(BOTH)
  print(f'{"":26s}{"w":20s}{"J":8s}distance to the best')
  for name, w in (
    ('client 1 alone', minimiser(FIRST)),
    ('client 2 alone', minimiser(SECOND)),
    ('the average (FedAvg)', average()),
    ('client 2 keeps its own', perturbed()),
    ('the best for both', best),
  ):
    numbers = f'[{w[0]:.4f}, {w[1]:.4f}]'
    distance = np.linalg.norm(w - best)
    print(f'{name:26s}{numbers:20s}{cost(w, BOTH):.4f}  {distance:.4f}')
  print(f'\nSAFL, client 2, ε = {EPSILON}, L = {TEMPERATURE:g}')
  print('round t   p        E[J]     a draw')
  for t in (1, 10, 50, 100, 200):
    p, w = math.exp(-t / TEMPERATURE), mixed(t)
    draw = f'[{w[0]:.4f}, {w[1]:.4f}]'
    print(f'{t:7d}   {p:.4f}   {expected_cost(t):.4f}   {draw}')


if __name__ == '__main__':
  main()
