"""The baselines: all data in one place, and every client by itself."""

import dataclasses

from safl_tf.algorithms import fed_avg
from safl_tf.core import algorithm
from safl_tf.rules import mix


@algorithm.published('centralized')
def build_centralized() -> algorithm.Algorithm:
  """Builds centralised training: one client with all data, E epochs a round.

  An example that several clients hold counts once. The columns of the history
  are those of a federated run; nothing is uploaded.

  Example:
    ```python
    result = safl_tf.train(
      model_fn, clients, safl_tf.build_centralized(),
      test_data=(x_test, y_test), rounds=3)
    ```
  """
  return dataclasses.replace(fed_avg.build_fed_avg(), pooled=True)


@algorithm.published('local_only')
def build_local_only(
  fraction: float = 1.0, clients_per_round: int | None = None
) -> algorithm.Algorithm:
  """Builds local training: SAFL with ε = 0 and p = 1.

  Clients never receive the global model. The test metrics are the means over
  all clients' own models; `Result.model` is their average.

  Args:
    fraction: R in (0, 1], the share of clients that train in a round.
    clients_per_round: s, their number, instead of R.

  Example:
    ```python
    result = safl_tf.train(
      model_fn, clients, safl_tf.build_local_only(),
      test_data=(x_test, y_test), rounds=3)
    result.state.client_models[0]  # the vector of client 0's model
    ```
  """
  return dataclasses.replace(
    fed_avg.build_fed_avg(fraction, clients_per_round),
    mix=mix.keep(),
    alone=True,
  )
