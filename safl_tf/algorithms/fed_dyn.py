"""FedDyn (Acar et al. 2021): dynamic regularisation of clients' losses."""

import dataclasses

import numpy as np
import tensorflow as tf

from safl_tf.algorithms import fed_avg
from safl_tf.core import algorithm
from safl_tf.rules import aggregate, client_work, gate
from safl_tf.util import validation


@algorithm.published('feddyn')
def build_fed_dyn(
  feddyn_alpha: float = 0.1,
  fraction: float = 1.0,
  clients_per_round: int | None = None,
) -> algorithm.Algorithm:
  """Builds FedDyn: clients' minima agree with that of the mean loss.

  FedDyn is due to Acar et al. 2021. A client keeps λ_k, the gradient of its
  loss at its last model, and minimises F_k(w) - <λ_k, w> + a/2·‖w - z̄‖² by
  steps along

      g(w) - λ_k + a·(w - z̄),   then   λ_k ← λ_k - a·(z_k - z̄)

  The server averages, unweighted, over the uploads of the round, with n the
  number of all clients:

      h ← h - a·Σ_k (z_k - z̄)/n,   z̄ ← mean_k z_k - h/a

  There is a global model before the first round. A gate is refused.

  Args:
    feddyn_alpha: a > 0, the strength of the regularisation.
    fraction: R in (0, 1], the share of clients in a round.
    clients_per_round: s, their number, instead of R.

  Example:
    ```python
    result = safl_tf.train(
      model_fn, clients, safl_tf.build_fed_dyn(feddyn_alpha=0.05), rounds=3)
    ```
  """
  a = validation.limited('feddyn_alpha', feddyn_alpha)

  def start(begun: client_work.ClientRound) -> algorithm.Tensors:
    return {'anchor': begun.received['z'], 'slope': begun.kept['slope']}

  def gradient(
    g: tf.Tensor, w: tf.Tensor, values: algorithm.Tensors, weight: tf.Tensor
  ) -> tf.Tensor:
    pull = a * (w - values['anchor']) - values['slope']
    return g + tf.cast(weight, g.dtype) * pull

  def end(
    begun: client_work.ClientRound, trained: client_work.Trained
  ) -> client_work.Trained:
    slope = begun.kept['slope']
    path = (trained.z - begun.received['z'])[: slope.shape[0]]
    return trained._replace(kept={**trained.kept, 'slope': slope - a * path})

  def average(
    memory: aggregate.Memory,
    updates: aggregate.Updates,
    z_bar: np.ndarray | None,
  ) -> aggregate.Aggregated:
    assert z_bar is not None  # there is one from the start
    z = aggregate.weighted_mean(np.ones(len(updates.ids)), updates.z)
    trained = slice(len(memory['h']))  # not moving statistics
    share = len(updates.ids) / updates.num_clients
    change = z[trained].astype(np.float64) - z_bar[trained]
    h = memory['h'] - a * share * change
    z[trained] -= h / a
    return aggregate.Aggregated(z, {'h': h})

  return dataclasses.replace(
    fed_avg.build_fed_avg(fraction, clients_per_round),
    client_work=client_work.ClientWork(
      init=lambda layout: {
        'slope': np.zeros(layout.trainable_size, layout.dtype)
      },
      start=start,
      gradient=gradient,
      end=end,
    ),
    aggregate=aggregate.Aggregator(
      average, init=lambda layout: {'h': np.zeros(layout.trainable_size)}
    ),
    shared_start=True,
    validate=_validate,
  )


def _validate(rules: algorithm.Algorithm) -> None:
  hint = "the server's h is the mean of the clients' slopes, so all upload"
  algorithm.require_default(rules, 'gate', gate.always(), hint)
