"""A driver on a cluster of two nodes that fail: `python -m` with a folder.

It runs in a process of its own, as Ray reads its variables when it is imported.
Prints `ok STEP` after each of `STEPS`, or of those that are given.
"""

import contextlib
import dataclasses
import functools
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
import traceback
from concurrent import futures

import psutil
from absl import logging

from tests.core.ray import clusters

TIMEOUT = 60.0  # far more than a worker takes to start
SHORT_TIMEOUT = 5.0
STEPS = (
  'equal_bits',
  'killed_worker',
  'killed_node',
  'new_node',
  'no_room',
  'room_again',
  'client_error',
  'other_versions',
  'head_dies',
)


def main(folder, *steps):
  """Runs all steps, or those that are given."""
  with contextlib.ExitStack() as stack:
    cluster = stack.enter_context(contextlib.closing(clusters.Cluster()))
    os.environ.update(cluster.environment)
    try:
      faults = Faults(cluster, stack, pathlib.Path(folder))
      for name in steps or STEPS:
        start = time.monotonic()
        getattr(faults, name)()
        print(f'ok {name} {time.monotonic() - start:.1f} s', flush=True)
    except Exception:
      traceback.print_exc()  # Ray may end this process without a word
      raise
    finally:
      faults.process.close()


class Faults:
  """The steps; each leaves the cluster to the next."""

  def __init__(self, cluster, stack, folder):
    import ray  # after the variables are set

    import safl_tf
    from tests import tiny_rounds

    logging.use_absl_handler()  # with times
    self.cluster = cluster
    self.stack = stack
    self.folder = folder
    self.background = stack.enter_context(futures.ThreadPoolExecutor(1))
    nodes = [self.background.submit(cluster.add_node) for _ in range(2)]
    self.ray = ray
    self.rounds = tiny_rounds
    self.config = dataclasses.replace(tiny_rounds.CONFIG, local_epochs=600)
    self.expected, _ = tiny_rounds.run(self.make('threads'), 7)
    self.nodes = [node.result() for node in nodes]
    self.ray_config = safl_tf.RayConfig(
      cluster.address, workers=2, chunk=1, timeout=TIMEOUT
    )
    self.process = self.make(self.ray_config)
    self.state = self.process.initialize(0)

  def make(self, executor, **options):
    return self.rounds.make(executor=executor, config=self.config, **options)

  @property
  def crew(self):
    return self.process._trainer._remote.workers.open().crew

  def wait_for_workers(self):
    while len(self.crew.ready) < 2:
      self.crew.step()

  def next(self):
    """Runs a round; compares it with that of threads."""
    state, metrics = self.process.next(self.state)
    self.rounds.check_same(state, self.expected[state.t])
    self.state = state
    return metrics.workers

  def in_round(self, action):
    """Runs a round, in which a thread calls action(process of a worker)."""

    def wait():
      crew = self.crew
      while not (busy := [m for m in crew.members if m.chunks]):
        time.sleep(0.01)
      action(busy[0].info['pid'])

    thread = threading.Thread(target=wait)
    thread.start()
    try:
      return self.next()
    finally:
      thread.join()

  def equal_bits(self):
    for _ in range(2):
      metrics = self.next()
    assert (metrics.alive, metrics.lost) == (2, 0), metrics

  def killed_worker(self):
    metrics = self.in_round(lambda pid: os.kill(pid, signal.SIGKILL))
    assert metrics.lost == 1, metrics

  def killed_node(self):
    def kill(pid):
      above = [parent.pid for parent in psutil.Process(pid).parents()]
      [node] = [node for node in self.nodes if node.pid in above]
      clusters.kill_node(node)

    self.wait_for_workers()
    metrics = self.in_round(kill)
    assert metrics.lost == 2, metrics

  def new_node(self):
    self.cluster.add_node()
    self.wait_for_workers()
    assert self.next().alive == 2

  def no_room(self):
    """Others take the CPUs of workers that die."""

    @self.ray.remote(num_cpus=1)
    class Other:
      def started(self):
        return True

    self.others = [Other.remote() for _ in range(2)]
    for member in self.crew.members:
      os.kill(member.info['pid'], signal.SIGKILL)
    self.ray.get([o.started.remote() for o in self.others], timeout=60)
    start = time.monotonic()
    self.crew._config = dataclasses.replace(
      self.ray_config, timeout=SHORT_TIMEOUT
    )
    error = self.error_of(self.next)
    self.crew._config = self.ray_config
    assert 'no Ray worker for 5 s (ray_timeout)' in str(error), error
    assert time.monotonic() - start < SHORT_TIMEOUT + 20

  def room_again(self):
    self.ray.kill(self.others[0])
    metrics = self.next()
    assert (metrics.alive, metrics.lost) == (1, 4), metrics

  def client_error(self):
    """The user's error is raised, with the worker's traceback."""
    limit = self.rounds.CLIENTS.x.max()  # of one client's example
    model = functools.partial(failing_model, limit)
    process = self.make(self.ray_config, model=model)
    error = self.error_of(lambda: process.next(process.initialize(0)))
    assert 'values are too large' in str(error), error
    [note] = error.__notes__
    assert 'on the worker on ' in note, note
    assert 'assert_less' in note, note

  def other_versions(self):
    """A node with other versions is refused by name."""
    fakes = self.folder / 'fakes'
    for name in ('tensorflow', 'keras'):
      metadata = f'Metadata-Version: 2.1\nName: {name}\nVersion: 9.9\n'
      write(fakes / f'{name}-9.9.dist-info' / 'METADATA', metadata)
    write(fakes / 'safl_tf' / '__init__.py', '')
    write(fakes / 'safl_tf' / 'version.py', "__version__ = '9.9'\n")
    patch = f"""
import importlib.util
import platform

find_spec = importlib.util.find_spec
fake = importlib.util.spec_from_file_location(
  'safl_tf', '{fakes}/safl_tf/__init__.py'
)
importlib.util.find_spec = lambda name, package=None: (
  fake if name == 'safl_tf' else find_spec(name, package)
)
platform.python_version = lambda: '9.9'
"""
    write(fakes / 'sitecustomize.py', patch)
    node = self.cluster.add_node(cpus=2, PYTHONPATH=str(fakes))
    config = dataclasses.replace(self.ray_config, workers=1, cpus_per_worker=2)
    error = self.error_of(lambda: self.make(config))
    assert str(error).startswith(f'ray_address={self.cluster.address}: ')
    for name in ('Python', 'TensorFlow', 'Keras', 'safl_tf'):
      assert f' {name} 9.9 (here ' in str(error), error
    clusters.kill_node(node)

  def head_dies(self):
    """The driver ends; its run goes on with a new cluster."""
    from tests.binaries import programs

    self.process.close()
    run = self.folder / 'run'
    driver = subprocess.Popen(
      [
        *(sys.executable, '-c'),
        'import sys; from tests.core.ray import faults; '
        'faults.train(*sys.argv[1:])',
        *(run, self.cluster.address),
      ],
      stderr=subprocess.PIPE,
      text=True,
    )
    other = self.background.submit(self.new_cluster)
    train(self.folder / 'expected')
    while not list(run.glob('checkpoints/*000002*')):
      assert driver.poll() is None, driver.communicate()
      time.sleep(0.05)
    self.cluster.kill_head()
    _, error = driver.communicate(timeout=30)
    assert driver.returncode == 1, driver.returncode
    assert 'head of the Ray cluster does not answer' in error, error
    assert train(run, other.result().address).history[-1]['workers'] == 1
    programs.check_equal(run, self.folder / 'expected')

  def new_cluster(self):
    """Starts another cluster, of a head that has a CPU."""
    cluster = clusters.Cluster(self.cluster.token, cpus=1)
    self.stack.enter_context(contextlib.closing(cluster))
    return cluster

  def error_of(self, action):
    """Returns the error of an action."""
    try:
      action()
    except Exception as error:
      return error
    raise AssertionError('no error')


def train(folder, address=None):
  """A run with a folder, on a cluster or here."""
  import safl_tf
  from tests import tiny, tiny_rounds

  executor = 'threads'
  if address is not None:
    executor = safl_tf.RayConfig(address, workers=1, timeout=TIMEOUT)
  return safl_tf.train(
    tiny.dense,
    tiny_rounds.CLIENTS,
    rounds=6,
    config=dataclasses.replace(tiny_rounds.CONFIG, local_epochs=600),
    executor=executor,
    jit_compile='false',
    output_dir=folder,
    export='none',
    checkpoint_every=1,
    progress=False,
  )


def write(path, text):
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text(text)


def failing_model(limit):
  """A model that refuses inputs from a limit on."""
  import keras
  import tensorflow as tf

  class Check(keras.layers.Layer):
    def call(self, x):
      tf.debugging.assert_less(x, limit, 'values are too large')
      return x

  return keras.Sequential([keras.Input((8,)), Check(), keras.layers.Dense(3)])


if __name__ == '__main__':
  main(*sys.argv[1:])
