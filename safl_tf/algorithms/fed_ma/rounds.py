"""FedMA's rounds: layer by layer, or all layers at once.

Communication in bytes, per client:

- up, layer by layer: the layer that is matched in this round; in the last round
  of a pass also the client's class counts, int32. At once: the whole model and
  the class counts.
- down, at the start of a round: the whole global model, if a pass begins and
  there is one; within a pass the global layer of the round before, and the
  client's map of it, int32. At once: the global model with the maps of all its
  hidden layers.
"""

import functools
from collections.abc import Sequence

import numpy as np

from safl_tf.algorithms.fed_ma import (
  layer_chain,
  layer_match,
  layer_weights,
  progress,
)
from safl_tf.algorithms.fed_ma.matching import config
from safl_tf.core import algorithm as algorithm_lib
from safl_tf.core import client_trainer, cohort, seeds
from safl_tf.core import state as state_lib
from safl_tf.util import errors

_MAX_SHAPES = 6  # of models that stay compiled, besides the original
_INT = np.dtype(np.int32).itemsize

Result = tuple[state_lib.FederatedState, state_lib.RoundMetrics]


class MatchedRounds:
  """Runs rounds of FedMA (Wang, Yurochkin et al. 2020).

  Layer by layer, a pass of N rounds over the N weight layers matches one layer
  in each. The clients of a pass stay the same. In round i each of them trains
  with the layers below i frozen, and uploads layer i, whose inputs are in the
  global order; the server matches and averages it; the client takes the global
  layer i over and puts the inputs of layer i+1 into the global order. The last
  layer's units are classes: it is averaged by class counts. Only then is there
  a new global model. A client whose update is not finite is out until the next
  pass; if all are, the pass is abandoned until the next one starts.

  The first pass starts from the clients' own initial models. After it, with
  fixed widths, clients start from the global model; where layers may grow, a
  client takes those units out of it that its own were matched to, so that
  clients' models keep their size. What FedProx pulls to is the model that a
  client starts the round from, once there is anything of the server's in it.

  `FederatedState.memory` holds the progress, see `progress`; during a pass also
  its clients' models, 'pass_models'.

  Attributes:
    rounds_per_pass: the number of rounds per new global model.

  Args:
    trainer: for models of the original widths.
    algorithm: draws the clients of a pass.
    match: how units are matched.
  """

  def __init__(
    self,
    trainer: client_trainer.ClientTrainer,
    algorithm: algorithm_lib.Algorithm,
    match: config.MatchConfig,
  ):
    self._match = match
    self._select = algorithm.select
    self._grows = self._match.matching == 'bbp'
    self._trainer = trainer
    self._clients = trainer.clients
    if self._clients.num_classes is None:
      hint = 'needs class numbers, to weigh the rows of the last layer by label'
      raise errors.InputError('algorithm', 'fed_ma', hint)
    self._num_classes = self._clients.num_classes
    self._chain = layer_chain.find(trainer.model.template)
    self._item = np.dtype(trainer.model.dtype).itemsize
    self._resized = functools.lru_cache(_MAX_SHAPES)(self._new_trainer)
    self._layerwise = self._match.schedule == 'layerwise'
    self.rounds_per_pass = len(self._chain.links) if self._layerwise else 1

  def next(self, state: state_lib.FederatedState) -> Result:
    """Runs one communication round."""
    return self._next_layer(state) if self._layerwise else self._next_all(state)

  def trainer_of(
    self, state: state_lib.FederatedState
  ) -> client_trainer.ClientTrainer:
    """Returns the trainer for models with the widths of z̄."""
    return self._trainer_for(state.memory.get(progress.WIDTHS))

  def _next_layer(self, state: state_lib.FederatedState) -> Result:
    """Matches one layer."""
    t = state.t + 1
    number, i = divmod(state.t, self.rounds_per_pass)
    if i == 0:
      ids = self._select(state.seed, number + 1, self._clients.num_clients)
      done = progress.begin(ids, self._chain.hidden)
      models = [self._initial(state, k) for k in ids.tolist()]
    else:
      done, models = self._underway(state)
    chain = self._chain.resized(done.widths)
    model_of = dict(zip(done.ids.tolist(), models, strict=True))
    received = i > 0 or state.z_bar is not None  # anything from the server

    trainer = self._trainer_for(done.widths)
    tensors = trainer.model.layout.tensors[: chain.tensors_below(i)]
    frozen = np.zeros(trainer.model.size, bool)
    frozen[: sum(tensor.size for tensor in tensors)] = True

    def arrays(k: int) -> tuple[algorithm_lib.Arrays, algorithm_lib.Arrays]:
      own = {'z': model_of[k]}
      return own, {'frozen': frozen, **(own if received else {})}

    trained = trainer.train(state.seed, t, done.ids, arrays)
    new = self._after_layer(state, chain, done, i, trained)
    return new, self._trainer.measure(
      trained, trained.sent, self._up(chain, i), self._down(chain, i, state)
    )

  def _after_layer(
    self,
    state: state_lib.FederatedState,
    chain: layer_chain.Chain,
    done: progress.Matching,
    i: int,
    trained: cohort.CohortOutput,
  ) -> state_lib.FederatedState:
    """Returns the state after matching layer i."""
    new = state._replace(t=trained.t, memory=progress.finished(state.memory))
    sent = trained.sent
    if not sent.any():
      return new
    done, kept = done.only(sent), trained.kept['z']
    own = [
      layer_weights.split(chain, kept[k].read()) for k in done.ids.tolist()
    ]
    uploads = [layer_weights.split(chain, z)[i] for z in trained.uploads['z']]
    if i == len(chain.links) - 1:
      last = self._classifier(uploads, done.ids)
      return new._replace(
        z_bar=layer_weights.join([*own[0][:-1], last]),
        memory=done.write(progress.GLOBAL),
      )
    matched = self._match_layer(state, i, uploads, done.ids)
    width = len(matched.counts)
    models = [
      layer_weights.join(
        [
          *z[:i],
          matched.weights,
          layer_weights.place_inputs(z[i + 1], pi, width),
          *z[i + 2 :],
        ]
      )
      for z, pi in zip(own, matched.maps, strict=True)
    ]
    done = done.extended(i, matched.maps, matched.counts)
    remembered = {**done.write(progress.PASS), 'pass_models': np.stack(models)}
    return new._replace(memory=new.memory | remembered)

  def _next_all(self, state: state_lib.FederatedState) -> Result:
    """Matches all layers."""
    t = state.t + 1
    ids = self._select(state.seed, t, self._clients.num_clients)

    def arrays(k: int) -> tuple[algorithm_lib.Arrays, algorithm_lib.Arrays]:
      if self._grows:
        own = {'z': self._initial(state, k)}
        return own, {} if state.z_bar is None else own
      own = {'z': state.client_models[k]}
      return own, {} if state.z_bar is None else {'z': state.z_bar}

    trained = self._trainer.train(state.seed, t, ids, arrays)
    new = self._aggregated(state, trained)
    up = self._chain.size * self._item + self._num_classes * _INT
    down = 0
    if state.z_bar is not None:
      down = state.z_bar.nbytes + sum(self._chain.hidden) * _INT
    return new, self._trainer.measure(trained, trained.sent, up, down)

  def _aggregated(
    self, state: state_lib.FederatedState, trained: cohort.CohortOutput
  ) -> state_lib.FederatedState:
    """Returns the state after matching all layers of the uploads."""
    own = {k: a.read() for k, a in trained.kept.get('z', {}).items()}
    new, sent = state._replace(t=trained.t), trained.sent
    if sent.any():
      done = progress.begin(trained.ids[sent], self._chain.hidden)
      models = [
        layer_weights.split(self._chain, z) for z in trained.uploads['z']
      ]
      layers = []
      for i in range(len(self._chain.hidden)):
        uploads = [z[i] for z in models]
        matched = self._match_layer(state, i, uploads, done.ids)
        layers.append(matched.weights)
        done = done.extended(i, matched.maps, matched.counts)
        for z, pi in zip(models, matched.maps, strict=True):
          z[i + 1] = layer_weights.place_inputs(
            z[i + 1], pi, len(matched.counts)
          )
      last = self._classifier([z[-1] for z in models], done.ids)
      new = new._replace(
        z_bar=layer_weights.join([*layers, last]),
        memory=done.write(progress.GLOBAL),
      )
      own |= {k: self._aligned(done, k, own[k]) for k in done.ids.tolist()}
    if self._grows:
      return new  # clients start from a part of the global model
    clients = state.clients | {'z': state.client_models.updated(own)}
    return new._replace(clients=clients)

  def _aligned(
    self, done: progress.Matching, k: int, z: np.ndarray
  ) -> np.ndarray:
    """Returns a client's own model with its units in the global order."""
    maps = done.chosen(k, self._chain.hidden)
    return layer_weights.pick(self._chain, z, [np.argsort(pi) for pi in maps])

  def _initial(self, state: state_lib.FederatedState, k: int) -> np.ndarray:
    """Returns the model client k starts a pass from."""
    if state.z_bar is None:
      return state.client_models[k]
    done = progress.read(state.memory, progress.GLOBAL)
    if done is None:
      raise errors.InputError('state', 'given', 'is not of a run of FedMA')
    if not self._grows:
      return state.z_bar
    chain = self._chain.resized(done.widths)
    return layer_weights.pick(
      chain, state.z_bar, done.chosen(k, self._chain.hidden)
    )

  def _underway(
    self, state: state_lib.FederatedState
  ) -> tuple[progress.Matching, list[np.ndarray]]:
    """Returns the pass in progress; without clients if it was abandoned."""
    done = progress.read(state.memory, progress.PASS)
    if done is None:
      return progress.begin(np.zeros(0), self._chain.hidden), []
    return done, list(state.memory['pass_models'])

  def _match_layer(
    self,
    state: state_lib.FederatedState,
    i: int,
    uploads: Sequence[layer_weights.Weights],
    ids: np.ndarray,
  ) -> layer_match.MatchedLayer:
    reference = None
    if state.z_bar is not None and not self._grows:
      reference = layer_weights.split(self._chain, state.z_bar)[i]
    rng = seeds.generator(state.seed, seeds.Role.MATCH, state.t + 1, i)
    sizes = self._clients.sizes[ids]
    return layer_match.match(self._match, uploads, sizes, rng, reference)

  def _classifier(
    self, uploads: Sequence[layer_weights.Weights], ids: np.ndarray
  ) -> layer_weights.Weights:
    counts = self._clients.label_counts(ids.tolist())
    return layer_match.average_classifier(uploads, counts)

  def _up(self, chain: layer_chain.Chain, i: int) -> int:
    """Returns the bytes a client uploads for layer i."""
    last = i == len(chain.links) - 1
    counts = self._num_classes * _INT if last else 0
    return chain.layer_size(i) * self._item + counts

  def _down(
    self, chain: layer_chain.Chain, i: int, state: state_lib.FederatedState
  ) -> int:
    """Returns the bytes a client receives before it trains layer i."""
    if i == 0:
      return 0 if state.z_bar is None else state.z_bar.nbytes
    size = chain.layer_size(i - 1) * self._item
    return size + self._chain.hidden[i - 1] * _INT

  def _trainer_for(
    self, hidden: np.ndarray | None
  ) -> client_trainer.ClientTrainer:
    """Returns the trainer for models with these hidden widths."""
    if hidden is None or tuple(hidden) == self._chain.hidden:
      return self._trainer
    return self._resized(tuple(map(int, hidden)))

  def _new_trainer(
    self, hidden: tuple[int, ...]
  ) -> client_trainer.ClientTrainer:
    template = self._trainer.model.template
    return self._trainer.with_model(
      lambda: layer_chain.rebuild(template, hidden)
    )
