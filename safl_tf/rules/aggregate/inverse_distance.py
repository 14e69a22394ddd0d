"""Inverse distance aggregation: models near the average weigh more."""

from collections.abc import Sequence

import numpy as np

from safl_tf.rules.aggregate import base
from safl_tf.util import choices, validation

_NORM_ORDERS = {'l1': 1, 'l2': 2}


def inverse_distance(
  reference: str = 'mean',
  norm: str = 'l2',
  power: float = 1.0,
  by_size: bool = False,
) -> base.Aggregator:
  """Builds IDA, inverse distance aggregation (Yeganeh et al. 2020).

      z̄ = Σ_k η_k z_k,   η_k from `inverse_distance_weights`

  Equal models give exactly that model.

  Args:
    reference: the point distances are measured from: the plain 'mean' of the
      uploads, or their mean weighted by 'size'.
    norm: 'l2' or 'l1', over the whole model.
    power: of the distance; 0 gives the plain mean.
    by_size: whether η_k is also multiplied by m_k.

  Example:
    ```python
    ida_safl = dataclasses.replace(
      safl_tf.build_safl(),
      aggregate=safl_tf.aggregate.inverse_distance(power=2, by_size=True))
    result = safl_tf.train(model_fn, clients, ida_safl, rounds=2)
    ```
  """
  _check(reference, norm, power)
  validation.instance('by_size', by_size, bool, 'True or False')

  def apply(
    memory: base.Memory, updates: base.Updates, z_bar: np.ndarray | None
  ) -> base.Aggregated:
    del z_bar
    z = updates.z
    first = z[0]
    if all(np.array_equal(model, first) for model in z[1:]):
      return base.Aggregated(first.copy(), memory)
    eta = inverse_distance_weights(
      z, updates.m, reference, norm, power, by_size
    )
    return base.Aggregated(base.weighted_mean(eta, z), memory)

  return base.Aggregator(apply)


def inverse_distance_weights(
  z: Sequence[np.ndarray],
  m: np.ndarray,
  reference: str = 'mean',
  norm: str = 'l2',
  power: float = 1.0,
  by_size: bool = False,
) -> np.ndarray:
  """Returns the coefficients η of IDA, shape [r], in float64.

      d_k = ‖z_ref - z_k‖ + δ,   δ = 1e-12 (1 + max_j ‖z_ref - z_j‖)
      η_k = d_k^-power / Σ_j d_j^-power

  The printed formula measures distances from z̄ itself, which depends on η;
  z_ref, a first average of the uploads, replaces it. A model that equals z_ref
  gets almost all the weight; several such models share it.

  Args:
    z: the uploads, r vectors of shape [P].
    m: the clients' numbers of examples, shape [r].
    reference: z_ref is the plain 'mean' or the mean weighted by 'size'.
    norm: 'l2' or 'l1', over the whole model.
    power: of the distance.
    by_size: whether η_k is also multiplied by m_k, before the division.

  Example:
    ```pycon
    >>> z = [np.array([0.0]), np.array([1.0]), np.array([5.0])]  # mean: 2
    >>> eta = safl_tf.aggregate.inverse_distance_weights(z, m=np.ones(3))
    >>> eta.round(3).tolist()  # as 1/2, 1/1 and 1/3
    [0.273, 0.545, 0.182]
    ```
  """
  _check(reference, norm, power)
  m = np.asarray(m, np.float64)
  share = m if reference == 'size' else np.ones(len(z))
  z_ref = np.zeros(z[0].shape, np.float64)
  for part, model in zip(share / share.sum(), z, strict=True):
    z_ref += np.multiply(model, part, dtype=np.float64)
  d = np.array(
    [np.linalg.norm(model - z_ref, _NORM_ORDERS[norm]) for model in z]
  )
  d += 1e-12 * (1 + d.max())
  eta = (d.min() / d) ** power  # at most 1, so that no power overflows
  if by_size:
    eta *= m
  return eta / eta.sum()


def _check(reference: str, norm: str, power: float) -> None:
  validation.choice('reference', reference, choices.IDA_REFERENCES)
  validation.choice('norm', norm, choices.IDA_NORMS)
  validation.real('power', power, 0)
