"""Attacks by malicious clients: on their data or on their uploads.

The paper's introduction names the first: a client with biased data (one label
only) degrades the average. The others are the usual ones that robust
aggregators are tested against. A seed chooses the malicious clients, which stay
the same for the whole run.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from safl_tf.core import algorithm as algorithm_lib
from safl_tf.core import seeds
from safl_tf.data import arrays, client_data, targets
from safl_tf.util import choices, errors, validation

DATA = ('one_label', 'label_flip')  # the other attacks corrupt uploads
STRENGTHS = ('sign_flip', 'scale', 'noise')  # attacks with a strength


@dataclasses.dataclass(frozen=True)
class Attack:
  """An attack by some of the clients; a seed chooses them for the whole run.

  w is the global model, or the client's start if there is none, z the client's
  trained model and λ the strength.

  | kind | a malicious client |
  |---|---|
  | 'one_label' | holds as many examples as before, all of one of its labels |
  | 'label_flip' | holds label C-1-c in place of label c |
  | 'sign_flip' | uploads w - λ·(z - w) in place of z |
  | 'scale' | uploads w + λ·(z - w) |
  | 'noise' | uploads z plus Gaussian noise of standard deviation λ |
  | 'nonfinite' | uploads NaN, as if training had diverged |

  'one_label' is the paper's second group of clients. An `InputError` refuses a
  strength for kinds that have none, attacks on labels where targets are not
  classes, and attacks on uploads of algorithms that have no uploads.

  Attributes:
    kind: one of the above.
    fraction: the share of malicious clients in [0, 1], rounded to a whole
      number.
    strength: λ ≥ 0 of 'sign_flip', 'scale' and 'noise'.
    seed: draws the clients and their data.

  Example:
    ```pycon
    >>> attack = safl_tf.Attack('sign_flip', fraction=0.25, strength=2.0)
    >>> len(attack.choose(20))  # malicious clients of 20
    5
    ```

    ```python
    result = safl_tf.train(model_fn, clients, attack=attack, rounds=3)
    result.frame['malicious']  # those among the selected clients
    ```
  """

  kind: str
  fraction: float = 0.2
  strength: float = 1.0
  seed: int = 0

  def __post_init__(self) -> None:
    validation.choice('attack', self.kind, choices.ATTACKS[1:])
    validation.limited('attack_fraction', self.fraction)
    validation.limited('attack_strength', self.strength)
    if self.kind not in STRENGTHS and self.strength != 1:
      hint = f'has no effect on {self.kind}; it is for {", ".join(STRENGTHS)}'
      raise errors.InputError('attack_strength', self.strength, hint)
    validation.limited('seed', self.seed)

  def to_json(self) -> dict[str, Any]:
    """Returns the fields as JSON values."""
    return dataclasses.asdict(self)

  @property
  def corrupts_uploads(self) -> bool:
    """Whether the attack is on uploads, not on data."""
    return self.kind not in DATA

  def check(self, algorithm: algorithm_lib.Algorithm) -> None:
    """Refuses an attack on uploads if the algorithm has no uploads."""
    if self.corrupts_uploads and not algorithm.communicates:
      raise errors.InputError(
        'attack',
        self.kind,
        f'this algorithm has no uploads; use {" or ".join(DATA)}',
      )

  def choose(self, n: int) -> np.ndarray:
    """Returns the malicious ones among n clients, sorted."""
    rng = seeds.generator(self.seed, seeds.Role.ATTACK)
    count = round(self.fraction * n)
    return np.sort(rng.choice(n, count, replace=False, shuffle=False))

  def poison(self, clients: client_data.ClientData) -> client_data.ClientData:
    """Returns the data with what malicious clients hold instead."""
    if self.corrupts_uploads:
      return clients
    targets.refuse_without_classes('attack', self.kind, clients.y)
    malicious = self.choose(clients.num_clients).tolist()
    change = _one_label if self.kind == 'one_label' else _flipped
    return change(clients, malicious, self._generator)

  def corrupt(
    self, t: int, k: int, z: np.ndarray, start: np.ndarray
  ) -> np.ndarray:
    """Returns what malicious client k uploads in round t.

    Args:
      t: the round.
      k: the client.
      z: the client's trained model.
      start: the global model, or the client's start if there is none.
    """
    if self.kind == 'nonfinite':
      return np.full_like(z, np.nan)
    if self.kind == 'noise':
      noise = self._generator(t, k).normal(0, self.strength, z.shape)
      return (z + noise).astype(z.dtype)
    sign = -1 if self.kind == 'sign_flip' else 1
    return (start + sign * self.strength * (z - start)).astype(z.dtype)

  def _generator(self, *indices: int) -> np.random.Generator:
    return seeds.generator(self.seed, seeds.Role.ATTACK, *indices)


Generator = Callable[..., np.random.Generator]


def _one_label(
  clients: client_data.ClientData, malicious: list[int], generator: Generator
) -> client_data.ClientData:
  """Gives malicious clients examples of one of their labels, from all data."""
  parts = [clients.indices(k) for k in range(clients.num_clients)]
  for k in malicious:
    rng = generator(k)
    label = rng.choice(np.unique(clients.y[parts[k]]))
    pool = np.flatnonzero(clients.y == label)
    m = len(parts[k])
    parts[k] = rng.choice(pool, m, replace=m > len(pool))
  return clients.replace(parts=parts)


def _flipped(
  clients: client_data.ClientData, malicious: list[int], generator: Generator
) -> client_data.ClientData:
  """Gives malicious clients copies of their examples with label C-1-c."""
  del generator
  parts = [clients.indices(k) for k in range(clients.num_clients)]
  if not malicious:
    return clients
  rows = np.concatenate([parts[k] for k in malicious])
  start = len(clients.y)
  for k in malicious:
    parts[k] = np.arange(start, start + len(parts[k]))
    start += len(parts[k])

  def extended(leaf: Any) -> np.ndarray:
    return np.concatenate([leaf, leaf[rows]])

  C = clients.num_classes or 0  # `poison` refuses data without classes
  flipped = C - 1 - clients.y[rows]
  w = clients.sample_weight
  return clients.replace(
    x=arrays.map_leaves(extended, clients.x),
    y=np.concatenate([clients.y, flipped]),
    sample_weight=None if w is None else extended(w),
    parts=parts,
  )
