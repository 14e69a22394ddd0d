"""A driver on a cluster of two nodes that fail: `python -m` with a folder.

It runs in a process of its own, as Ray reads its variables when it is imported.
Prints `ok STEP` after each step.
"""

import dataclasses
import os
import pathlib
import signal
import sys
import threading
import time
import traceback

from tests.core.ray import clusters

TIMEOUT = 10.0
ROUNDS = 6


def main(folder):
  cluster = clusters.Cluster()
  os.environ.update(cluster.environment)
  try:
    Faults(cluster, pathlib.Path(folder)).run()
  except Exception:
    traceback.print_exc()  # Ray may end this process without a word
    raise
  finally:
    cluster.close()


class Faults:
  """The steps, in order: each leaves the cluster to the next."""

  def __init__(self, cluster, folder):
    self.cluster = cluster
    self.folder = folder
    self.nodes = [cluster.add_node(), cluster.add_node()]

  def run(self):
    # After the cluster's variables are set.
    import ray

    import safl_tf
    from tests import tiny_rounds

    self.ray = ray
    self.rounds = tiny_rounds
    self.config = dataclasses.replace(tiny_rounds.CONFIG, local_epochs=600)
    self.expected, _ = tiny_rounds.run(self.make('threads'), ROUNDS)
    self.ray_config = safl_tf.RayConfig(
      self.cluster.address, workers=2, chunk=1, timeout=TIMEOUT
    )
    ray.init(self.cluster.address, logging_level=40)
    self.cluster.wait_for(lambda: ray.cluster_resources().get('CPU') == 2)
    ray.shutdown()
    self.process = self.make(self.ray_config)
    self.state = self.process.initialize(0)
    for step in (
      self.equal_bits,
      self.killed_worker,
      self.killed_node,
      self.new_node,
      self.no_room,
      self.room_again,
    ):
      start = time.monotonic()
      step()
      print(f'ok {step.__name__} {time.monotonic() - start:.1f} s', flush=True)

  def make(self, executor, **options):
    return self.rounds.make(executor=executor, config=self.config, **options)

  @property
  def workers(self):
    return self.process._trainer._ray.workers

  def next(self):
    """Runs a round; compares it with that of threads."""
    state, metrics = self.process.next(self.state)
    self.rounds.check_same(state, self.expected[state.t])
    self.state = state
    return metrics.workers

  def in_round(self, action):
    """Does something as soon as a worker trains."""

    def wait():
      members = self.workers.open().crew.members
      while not any(member.chunks for member in members):
        time.sleep(0.01)
      action()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread

  def equal_bits(self):
    for _ in range(2):
      metrics = self.next()
    assert (metrics.alive, metrics.lost) == (2, 0), metrics

  def killed_worker(self):
    busy = lambda: next(m for m in self.workers.open().crew.members if m.chunks)
    killer = self.in_round(
      lambda: os.kill(busy().info['pid'], signal.SIGKILL)
    )
    metrics = self.next()
    killer.join()
    assert metrics.lost == 1, metrics

  def killed_node(self):
    self.workers.wait()
    killer = self.in_round(lambda: clusters.kill_node(self.nodes.pop()))
    metrics = self.next()
    killer.join()
    assert metrics.lost == 2, metrics

  def new_node(self):
    self.nodes.append(self.cluster.add_node())
    crew = self.workers.open().crew
    while len(crew.alive) < 2:
      crew.step()
    assert self.next().alive == 2

  def no_room(self):
    from safl_tf.util import errors

    @self.ray.remote(num_cpus=1)
    class Other:
      def ready(self):
        return True

    # They wait until workers die.
    self.others = [Other.remote() for _ in range(2)]
    calls = [other.ready.remote() for other in self.others]
    time.sleep(0.5)
    for process in self.workers.processes:
      os.kill(process, signal.SIGKILL)
    start = time.monotonic()
    try:
      self.next()
    except errors.RunError as error:
      assert 'no Ray worker for 10 s (ray_timeout)' in str(error), error
    else:
      raise AssertionError('there was room')
    assert time.monotonic() - start < TIMEOUT + 10
    self.ray.get(calls, timeout=10)

  def room_again(self):
    for other in self.others:
      self.ray.kill(other)
    self.next()


if __name__ == '__main__':
  main(sys.argv[1])
