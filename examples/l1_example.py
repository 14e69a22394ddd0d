"""The paper's example of two clients whose average is worse than one of them.

  python -m examples.l1_example

Each client has one example and minimises exactly its own part of

  J(w; D) = Σ_(x, y) (y - xᵀw)² + ‖w‖₁                           (1)

With FedAvg, both continue from the average of the two minimisers. With SAFL,
the second client mostly keeps its own, which also minimises the sum.
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


def loss(w: np.ndarray, data: Data) -> float:
  """Returns J(w; D)."""
  x, y = data
  return float(((y - x @ w) ** 2).sum() + np.abs(w).sum())


def minimiser(data: Data) -> np.ndarray:
  """Returns the minimiser of J if each example involves one element of w.

  Then J separates into a·w² - 2b·w + |w| for each element, with a = Σ x² and
  b = Σ xy, which sign(b)·max(|b| - ½, 0)/a minimises.
  """
  x, y = data
  a, b = (x**2).sum(axis=0), x.T @ y
  shrunk = np.where(np.abs(b) > 0.5, b - np.sign(b) / 2, 0.0)
  return np.divide(shrunk, a, out=np.zeros_like(b), where=a > 0)


def average() -> np.ndarray:
  """Returns FedAvg's global model."""
  return (minimiser(FIRST) + minimiser(SECOND)) / 2


def perturbed(epsilon: float = EPSILON) -> np.ndarray:
  """Returns the second client's model if kept local: ε·z̄ + (1-ε)·z."""
  return epsilon * average() + (1 - epsilon) * minimiser(SECOND)


def expected_loss(t: int) -> float:
  """Returns E[J] of the second client's model after mixing in round t."""
  p = math.exp(-t / TEMPERATURE)
  return p * loss(perturbed(), BOTH) + (1 - p) * loss(average(), BOTH)


def mixed(t: int, seed: int = 0) -> np.ndarray:
  """Returns one draw of the second client's model after mixing in round t."""
  rule = mix.anneal(EPSILON, TEMPERATURE)
  pair = seeds.pair(seed, seeds.Role.MIX, t, 1)
  return rule(pair, float(t), average(), minimiser(SECOND)).w.numpy()


def main() -> None:
  """Prints models, their losses and distances from the optimum."""
  best = minimiser(BOTH)
  print(f'{"":26s}{"w":20s}{"J":8s}distance to the optimum')
  for name, w in (
    ('client 1 alone', minimiser(FIRST)),
    ('client 2 alone', minimiser(SECOND)),
    ('average (FedAvg)', average()),
    ('client 2, kept local', perturbed()),
    ('optimum for both', best),
  ):
    numbers = f'[{w[0]:.4f}, {w[1]:.4f}]'
    distance = np.linalg.norm(w - best)
    print(f'{name:26s}{numbers:20s}{loss(w, BOTH):.4f}  {distance:.4f}')
  print(f'\nSAFL, client 2, ε = {EPSILON}, L = {TEMPERATURE:g}')
  print('round t   p        E[J]     one draw')
  for t in (1, 10, 50, 100, 200):
    p, w = math.exp(-t / TEMPERATURE), mixed(t)
    draw = f'[{w[0]:.4f}, {w[1]:.4f}]'
    print(f'{t:7d}   {p:.4f}   {expected_loss(t):.4f}   {draw}')


if __name__ == '__main__':
  main()
