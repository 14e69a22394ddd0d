"""Keys every random draw.

A draw is a function of (run seed, role, indices such as the round t and the
client k), never of the order of calls or the timing of threads. Both kinds of
generators are keyed here and nowhere else: NumPy's Philox for plans made on the
host, and the two-integer seeds of `tf.random.stateless_*` for what is drawn
inside compiled functions.
"""

import enum

import numpy as np


class Role(enum.IntEnum):
  """The purpose of a draw; changing a number changes what a seed gives."""

  INIT = 1  # a client's own initial model
  SELECT = 2  # S_t
  BATCHES = 3  # the order of a client's examples
  MIX = 4  # u
  GATE = 5  # whether a client uploads
  MODEL = 6  # dropout and other seed generators inside the model
  PARTITION = 7  # which examples a client holds
  ATTACK = 8  # which clients are malicious, and their corruptions
  MATCH = 9  # the order in which FedMA visits clients
  HOLDOUT = 10  # which examples a client holds out
  SPLIT = 11  # which of its examples a client is tested on


def generator(seed: int, role: Role, *indices: int) -> np.random.Generator:
  """Returns a NumPy generator for one purpose."""
  return np.random.Generator(np.random.Philox(_sequence(seed, role, indices)))


def pair(seed: int, role: Role, *indices: int) -> np.ndarray:
  """Returns a seed for `tf.random.stateless_*`: int32 [2]."""
  return _sequence(seed, role, indices).generate_state(2).view(np.int32)


def _sequence(
  seed: int, role: Role, indices: tuple[int, ...]
) -> np.random.SeedSequence:
  return np.random.SeedSequence(
    seed, spawn_key=(int(role), len(indices), *map(int, indices))
  )
