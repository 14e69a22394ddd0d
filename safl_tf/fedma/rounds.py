"""FedMA's rounds: layer by layer, or all layers at once.

What is counted as moved, in bytes, per device:

- up, layer by layer: the layer that is matched in this round; in the last round
  of a pass also the device's class counts, int32. At once: the whole model and
  the class counts.
- down, at the start of a round: the whole global model, if a pass begins and
  there is one; within a pass the global layer of the round before, and the
  device's map of it, int32. At once: the global model with the maps of all its
  hidden layers.
"""

import functools
from collections.abc import Sequence

import numpy as np

from safl_tf import algorithms, cohort, device_trainer, seeds, states
from safl_tf.data import client_data
from safl_tf.fedma import chains, layers, memory, vectors

_MOST_SHAPES = 6  # of models that stay compiled, besides the original
_INT = np.dtype(np.int32).itemsize

Result = tuple[states.FederatedState, states.RoundMetrics]


class MatchedRounds:
  """Runs rounds of FedMA (Wang, Yurochkin et al. 2020).

  Layer by layer, a pass of N rounds over the N weight layers matches one layer
  in each. The devices of a pass stay the same. In round i each of them trains
  with the layers below i frozen, and uploads layer i, whose inputs are in the
  global order; the server matches and averages it; the device takes the global
  layer i over and puts the inputs of layer i+1 into the global order. The last
  layer's units are classes: it is averaged by class counts. Only then is there
  a new global model. A device whose update is not finite is out until the next
  pass; if all are, the pass is given up, and nothing happens until the next.

  The first pass starts from the devices' own initial models. After it, with
  fixed widths, devices start from the global model; where layers may grow, a
  device takes those units out of it that its own were matched to, so that
  devices' models keep their size. What FedProx pulls to is the model that a
  device starts the round from, once there is anything of the server's in it.

  All that is remembered is in `FederatedState.memory`, see `memory`; in the
  midst of a pass also its devices' models, 'pass_models'.

  Attributes:
    rounds_per_pass: how many rounds give a global model.

  Args:
    trainer: for models of the original widths.
    devices: that train.
    clients: their data.
    algorithm: whose `match` is used.
  """

  def __init__(
    self,
    trainer: device_trainer.DeviceTrainer,
    devices: cohort.Cohort,
    clients: client_data.ClientData,
    algorithm: algorithms.Algorithm,
  ):
    assert algorithm.match is not None
    self._match = algorithm.match
    self._select = algorithm.select
    self._grows = self._match.matching == 'bbp'
    self._trainer = trainer
    self._cohort = devices
    self._clients = clients
    self._chain = chains.find(trainer.model.template)
    self._item = np.dtype(trainer.model.dtype).itemsize
    self._resized = functools.lru_cache(_MOST_SHAPES)(self._new_trainer)
    self._layerwise = self._match.schedule == 'layerwise'
    self.rounds_per_pass = len(self._chain.links) if self._layerwise else 1

  def next(self, state: states.FederatedState) -> Result:
    """One communication round."""
    return self._next_layer(state) if self._layerwise else self._next_all(state)

  def trainer_of(
    self, state: states.FederatedState
  ) -> device_trainer.DeviceTrainer:
    """For models with the widths of the global one."""
    return self._trainer_for(state.memory.get(memory.WIDTHS))

  def _next_layer(self, state: states.FederatedState) -> Result:
    """Matches one layer."""
    t = state.t + 1
    number, i = divmod(state.t, self.rounds_per_pass)
    if i == 0:
      ids = self._select(state.seed, number + 1, self._clients.num_devices)
      done = memory.begin(ids, self._chain.hidden)
      models = [self._initial(state, k) for k in ids.tolist()]
    else:
      done, models = self._underway(state)
    chain = self._chain.resized(done.widths)
    model_of = dict(zip(done.ids.tolist(), models, strict=True))
    received = i > 0 or state.z_bar is not None  # anything from the server

    def start(k: int) -> cohort.Start:
      z = model_of[k]
      return cohort.Start(z, z if received else None, chain.tensors_below(i))

    trained = self._cohort.train(
      self._trainer_for(done.widths), state.seed, t, done.ids, start
    )
    new = self._learned(state, chain, done, i, trained)
    return new, self._cohort.measure(
      trained, trained.sent, self._up(chain, i), self._down(chain, i, state)
    )

  def _learned(
    self,
    state: states.FederatedState,
    chain: chains.Chain,
    done: memory.Matching,
    i: int,
    trained: cohort.Trained,
  ) -> states.FederatedState:
    """The state after layer i was matched."""
    new = state._replace(t=trained.t, memory=memory.finished(state.memory))
    sent = trained.sent
    if not sent.any():
      return new
    done, rows = done.only(sent), np.flatnonzero(sent)
    own = [vectors.split(chain, trained.own[r].z) for r in rows]
    uploads = [vectors.split(chain, trained.updates[r].z)[i] for r in rows]
    if i == len(chain.links) - 1:
      last = self._classifier(uploads, done.ids)
      return new._replace(
        z_bar=vectors.join([*own[0][:-1], last]),
        memory=done.write(memory.GLOBAL),
      )
    matched = self._match_layer(state, i, uploads, done.ids)
    width = len(matched.counts)
    models = [
      vectors.join(
        [
          *z[:i],
          matched.weights,
          vectors.place_inputs(z[i + 1], pi, width),
          *z[i + 2 :],
        ]
      )
      for z, pi in zip(own, matched.maps, strict=True)
    ]
    done = done.extended(i, matched.maps, matched.counts)
    remembered = {**done.write(memory.PASS), 'pass_models': np.stack(models)}
    return new._replace(memory=new.memory | remembered)

  def _next_all(self, state: states.FederatedState) -> Result:
    """Matches all layers."""
    t = state.t + 1
    ids = self._select(state.seed, t, self._clients.num_devices)

    def start(k: int) -> cohort.Start:
      if not self._grows:
        return cohort.Start(state.devices[k], state.z_bar)
      z = self._initial(state, k)
      return cohort.Start(z, None if state.z_bar is None else z)

    trained = self._cohort.train(self._trainer, state.seed, t, ids, start)
    new = self._fused(state, trained)
    up = self._chain.size * self._item + self._clients.num_classes * _INT
    down = 0
    if state.z_bar is not None:
      down = state.z_bar.nbytes + sum(self._chain.hidden) * _INT
    return new, self._cohort.measure(trained, trained.sent, up, down)

  def _fused(
    self, state: states.FederatedState, trained: cohort.Trained
  ) -> states.FederatedState:
    """The state after all layers were matched, of the devices that uploaded."""
    own = trained.kept()
    new, sent = state._replace(t=trained.t), trained.sent
    if sent.any():
      done = memory.begin(trained.ids[sent], self._chain.hidden)
      models = [
        vectors.split(self._chain, trained.updates[row].z)
        for row in np.flatnonzero(sent)
      ]
      found = []
      for i in range(len(self._chain.hidden)):
        uploads = [z[i] for z in models]
        matched = self._match_layer(state, i, uploads, done.ids)
        found.append(matched.weights)
        done = done.extended(i, matched.maps, matched.counts)
        for z, pi in zip(models, matched.maps, strict=True):
          z[i + 1] = vectors.place_inputs(z[i + 1], pi, len(matched.counts))
      last = self._classifier([z[-1] for z in models], done.ids)
      new = new._replace(
        z_bar=vectors.join([*found, last]), memory=done.write(memory.GLOBAL)
      )
      own |= {k: self._aligned(done, k, own[k]) for k in done.ids.tolist()}
    if self._grows:
      return new  # devices start from a part of the global model
    return new._replace(devices=state.devices.updated(own))

  def _aligned(
    self, done: memory.Matching, k: int, z: np.ndarray
  ) -> np.ndarray:
    """A device's own model, its units in the order of the global ones."""
    maps = done.chosen(k, self._chain.hidden)
    return vectors.pick(self._chain, z, [np.argsort(pi) for pi in maps])

  def _initial(self, state: states.FederatedState, k: int) -> np.ndarray:
    """What device k begins a pass with."""
    if state.z_bar is None:
      return state.devices[k]
    done = memory.read(state.memory, memory.GLOBAL)
    assert done is not None  # there is a global model
    if not self._grows:
      return state.z_bar
    chain = self._chain.resized(done.widths)
    return vectors.pick(chain, state.z_bar, done.chosen(k, self._chain.hidden))

  def _underway(
    self, state: states.FederatedState
  ) -> tuple[memory.Matching, list[np.ndarray]]:
    """The pass that is under way; without devices if it was given up."""
    done = memory.read(state.memory, memory.PASS)
    if done is None:
      return memory.begin(np.zeros(0), self._chain.hidden), []
    return done, list(state.memory['pass_models'])

  def _match_layer(
    self,
    state: states.FederatedState,
    i: int,
    uploads: Sequence[vectors.Weights],
    ids: np.ndarray,
  ) -> layers.MatchedLayer:
    reference = None
    if state.z_bar is not None and not self._grows:
      reference = vectors.split(self._chain, state.z_bar)[i]
    rng = seeds.generator(state.seed, seeds.Role.MATCH, state.t + 1, i)
    sizes = self._clients.sizes[ids]
    return layers.match(self._match, uploads, sizes, rng, reference)

  def _classifier(
    self, uploads: Sequence[vectors.Weights], ids: np.ndarray
  ) -> vectors.Weights:
    counts = self._clients.label_counts(ids.tolist())
    return layers.average_classifier(uploads, counts)

  def _up(self, chain: chains.Chain, i: int) -> int:
    """What a device uploads of layer i."""
    last = i == len(chain.links) - 1
    counts = self._clients.num_classes * _INT if last else 0
    return chain.layer_size(i) * self._item + counts

  def _down(
    self, chain: chains.Chain, i: int, state: states.FederatedState
  ) -> int:
    """What a device receives before it trains layer i."""
    if i == 0:
      return 0 if state.z_bar is None else state.z_bar.nbytes
    size = chain.layer_size(i - 1) * self._item
    return size + self._chain.hidden[i - 1] * _INT

  def _trainer_for(
    self, hidden: np.ndarray | None
  ) -> device_trainer.DeviceTrainer:
    """The trainer of models with these widths."""
    if hidden is None or tuple(hidden) == self._chain.hidden:
      return self._trainer
    return self._resized(tuple(map(int, hidden)))

  def _new_trainer(
    self, hidden: tuple[int, ...]
  ) -> device_trainer.DeviceTrainer:
    template = self._trainer.model.template
    return self._trainer.with_model(lambda: chains.rebuild(template, hidden))
