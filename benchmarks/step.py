"""Shows where the time of LeNet-5's training step goes on a CPU.

  python -m benchmarks.step
  python -m benchmarks.step --write=docs/benchmarks.md

Each part is a loop compiled by XLA. As in the executor `threads`, two threads
run the loop at the same time. The parts take turns.
"""

import argparse
import os
import pathlib
import threading
import time
from collections.abc import Callable

from benchmarks import reports
from safl_tf.reporting import tables

BATCH, STEPS, IMAGES = 50, 100, 600
# Shapes of a step's matrix products [m, k] x [k, n], in the folded layers and
# in the dense ones: forward, gradient of the weights, gradient of the inputs.
PRODUCTS = (
  (24, 37, 144 * BATCH),
  (37, 144 * BATCH, 24),
  (64, 217, 16 * BATCH),
  (217, 16 * BATCH, 64),
  (216, 64, 16 * BATCH),
  *((BATCH, n, m) for n, m in ((256, 120), (120, 84), (84, 10))),
  *((n, BATCH, m) for n, m in ((256, 120), (120, 84), (84, 10))),
  *((BATCH, m, n) for n, m in ((256, 120), (120, 84), (84, 10))),
)


def training(train: bool) -> Callable[[], object]:
  """Returns a loop of steps, or of forward passes."""
  import numpy as np
  import tensorflow as tf

  from safl_tf.models import lenet5
  from safl_tf.models.fast import choose

  model = choose.fold(lenet5.lenet5())
  assert model is not None
  rng = np.random.default_rng(0)
  x = tf.constant(rng.integers(0, 256, (IMAGES, 28, 28, 1), np.uint8))
  y = tf.constant(rng.integers(0, 10, IMAGES))
  plan = tf.constant(rng.integers(0, IMAGES, (STEPS, BATCH)), tf.int32)
  weights = [variable.value for variable in model.trainable_variables]

  def loss(w: list[tf.Tensor], i: tf.Tensor) -> tf.Tensor:
    rows = tf.gather(plan, i)
    logits, _ = model.stateless_call(w, [], tf.gather(x, rows))
    return tf.reduce_sum(
      tf.nn.sparse_softmax_cross_entropy_with_logits(tf.gather(y, rows), logits)
    )

  def body(
    i: tf.Tensor, w: list[tf.Tensor], total: tf.Tensor
  ) -> tuple[tf.Tensor, list[tf.Tensor], tf.Tensor]:
    if not train:
      return i + 1, w, total + loss(w, i)
    with tf.GradientTape() as tape:
      tape.watch(w)
      value = loss(w, i)
    gradients = tape.gradient(value, w)
    w = [a - 1e-3 * g for a, g in zip(w, gradients, strict=True)]
    return i + 1, w, total + value

  @tf.function(jit_compile=True, autograph=False)
  def loop() -> tf.Tensor:
    start = (0, weights, 0.0)
    return tf.while_loop(lambda i, *_: i < STEPS, body, start)[2]

  return lambda: loop().numpy()


def products() -> Callable[[], object]:
  """Returns a loop of the matrix products of a step alone."""
  import tensorflow as tf

  pairs = [
    (tf.random.normal([m, k]), tf.random.normal([k, n])) for m, k, n in PRODUCTS
  ]

  def body(i: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    # Each depends on the last one, or XLA would compute it once.
    for a, b in pairs:
      a = tf.tensor_scatter_nd_update(a, [[0, 0]], [total])
      total = tf.matmul(a, b)[-1, -1] * 1e-9
    return i + 1, total

  @tf.function(jit_compile=True, autograph=False)
  def loop() -> tf.Tensor:
    return tf.while_loop(lambda i, _: i < STEPS, body, (0, 0.0))[1]

  return lambda: loop().numpy()


def seconds(loop: Callable[[], object]) -> float:
  """Returns the seconds of a step while two threads run the loop."""
  threads = [threading.Thread(target=loop) for _ in range(2)]
  start = time.perf_counter()
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  return (time.perf_counter() - start) / STEPS


def section(cycles: int) -> str:
  """Times all parts and returns the table as Markdown."""
  from benchmarks import methods, workloads

  loops = {
    'step': training(train=True),
    'forward pass': training(train=False),
    'matrix products of a step alone': products(),
  }
  for loop in loops.values():
    loop()  # compiles it
  best = dict.fromkeys(loops, float('inf'))
  for _ in range(cycles):
    for name, loop in loops.items():
      best[name] = min(best[name], seconds(loop))
  work = workloads.get('lenet')
  # Both threads share what matrix products reach with all cores.
  flop = BATCH * work.flop_per_image
  limit = 2 * flop / 1e9 * next(methods.gemm(work))
  more = sum(2 * m * k * n for m, k, n in PRODUCTS) / flop
  rows = [
    [name, f'{s * 1e3:.2f}', f'{s / best["step"]:.0%}', f'{s / limit:.2f}']
    for name, s in best.items()
  ]
  headings = ['part', 'ms', 'share of a step', '× GEMM limit of a step']
  return '\n\n'.join(
    [
      '## Where the time of a LeNet-5 step goes',
      f'{reports.provenance("benchmarks.step")} The fastest of {cycles} turns '
      f'of {STEPS} steps with {BATCH} images each, in two threads at a time. '
      f'At the speed of large matrix products a step takes {limit * 1e3:.2f} '
      f'ms. The products of folded layers are {more:.2f} times the work.',
      tables.to_markdown([headings, *rows]).rstrip(),
    ]
  )


def main() -> None:
  """Times the parts, prints the table and optionally writes it."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--cycles', type=int, default=10, help='turns to time')
  parser.add_argument('--write', type=pathlib.Path, help='a Markdown file')
  arguments = parser.parse_args()
  os.environ['TF_CPP_MIN_LOG_LEVEL'] = '3'
  reports.write(arguments.write, 'step', section(arguments.cycles))


if __name__ == '__main__':
  main()
