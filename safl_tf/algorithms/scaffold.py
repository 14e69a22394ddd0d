"""SCAFFOLD (Karimireddy et al. 2020), alone and with SAFL's annealed start."""

import dataclasses

import numpy as np
import tensorflow as tf

from safl_tf.algorithms import fed_avg, safl
from safl_tf.core import algorithm
from safl_tf.rules import aggregate, client_work, gate


@algorithm.published('scaffold')
def build_scaffold(
  fraction: float = 1.0, clients_per_round: int | None = None
) -> algorithm.Algorithm:
  """Builds SCAFFOLD with option II: control variates against client drift.

  SCAFFOLD is due to Karimireddy et al. 2020. Clients train with corrected
  gradients, and keep their variate c_k:

      w ← w - α·(g(w) - c_k + c)
      c_k⁺ = c_k - c + (x - y)/(K·α)

  where x is the model before and y the one after K local steps. The server
  averages, unweighted, over the uploads of the round, with n the number of all
  clients:

      z̄ ← mean_k y_k,   c ← c + Σ_k (c_k⁺ - c_k)/n

  `aggregate.server_optimizer` with 'sgd' adds the global learning rate of
  Karimireddy et al. Clients train with plain SGD, the default; other optimizers
  and a gate are refused. If losses are summed over a batch, variates are of the
  mean loss and count as often as the batch has examples.

  Args:
    fraction: R in (0, 1], the share of clients in a round.
    clients_per_round: s, their number, instead of R.

  Example:
    ```python
    result = safl_tf.train(
      model_fn, clients, safl_tf.build_scaffold(), rounds=3)
    result.state.kept(0)['c']  # the control variate of client 0
    ```
  """
  return _with_variates(fed_avg.build_fed_avg(fraction, clients_per_round))


@algorithm.published('scaffold_safl')
def build_scaffold_safl(
  epsilon: float = 0.3,
  temperature: float = 80.0,
  mix_granularity: str = 'element',
  fraction: float = 1.0,
  clients_per_round: int | None = None,
) -> algorithm.Algorithm:
  """Builds SCAFFOLD whose clients start from SAFL's annealed mix.

  Args:
    epsilon: ε, see `build_safl`.
    temperature: L, see `build_safl`.
    mix_granularity: see `build_safl`.
    fraction: R in (0, 1], the share of clients in a round.
    clients_per_round: s, their number, instead of R.

  Example:
    ```python
    result = safl_tf.train(
      model_fn, clients, safl_tf.build_scaffold_safl(temperature=10), rounds=3)
    ```
  """
  return _with_variates(
    safl.build_safl(
      epsilon, temperature, mix_granularity, fraction, clients_per_round
    )
  )


def _with_variates(rules: algorithm.Algorithm) -> algorithm.Algorithm:
  work = client_work.ClientWork(
    init=_zero_variate,
    receives=_zero_variate,
    start=_start,
    gradient=_gradient,
    end=_end,
    plain_sgd=True,
  )
  server = aggregate.Aggregator(
    _aggregate, _zero_variate, broadcast=lambda memory: {'c': memory['c']}
  )
  return dataclasses.replace(
    rules, client_work=work, aggregate=server, validate=_validate
  )


def _validate(rules: algorithm.Algorithm) -> None:
  hint = "the server's variate is the mean of the clients', so all upload"
  algorithm.require_default(rules, 'gate', gate.always(), hint)


def _zero_variate(layout: aggregate.Layout) -> aggregate.Memory:
  return {'c': np.zeros(layout.trainable_size, layout.dtype)}


def _start(begun: client_work.ClientRound) -> algorithm.Tensors:
  return {'correction': begun.received['c'] - begun.kept['c']}


def _gradient(
  g: tf.Tensor, w: tf.Tensor, values: algorithm.Tensors, weight: tf.Tensor
) -> tf.Tensor:
  del w
  return g + tf.cast(weight, g.dtype) * values['correction']


def _end(
  begun: client_work.ClientRound, trained: client_work.Trained
) -> client_work.Trained:
  total = tf.cast(trained.steps * begun.learning_rate, trained.z.dtype)
  path = (begun.w - trained.z)[: begun.kept['c'].shape[0]]
  change = path / total - begun.received['c']
  return trained._replace(
    kept={**trained.kept, 'c': begun.kept['c'] + change},
    upload={**trained.upload, 'c_change': change},
  )


def _aggregate(
  memory: aggregate.Memory,
  updates: aggregate.Updates,
  z_bar: np.ndarray | None,
) -> aggregate.Aggregated:
  del z_bar
  ones, c = np.ones(len(updates.ids)), memory['c']
  share = len(updates.ids) / updates.num_clients
  change = aggregate.weighted_mean(ones, updates.arrays['c_change'])
  z = aggregate.weighted_mean(ones, updates.z)
  return aggregate.Aggregated(z, {'c': c + c.dtype.type(share) * change})
