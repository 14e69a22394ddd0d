"""Seconds per round of several ways to train, in one go.

  python -m benchmarks.rounds                 # both works, about ten minutes
  python -m benchmarks.rounds --quick         # a tenth of the devices
  python -m benchmarks.rounds --work=lenet --write=docs/benchmarks.md

Every way runs in a process of its own, one after the other, on the same work.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import subprocess
import sys

WORKS = ('lenet', 'vgg')


def measure(work: str, way: str, quick: bool) -> dict[str, float]:
  """Times one way in this process."""
  import psutil

  from benchmarks import ways, workloads

  workload = workloads.get(work, quick)
  rounds = 2 if 'Keras' in way else 4
  seconds = list(ways.WAYS[way](workload, rounds))
  memory = psutil.Process().memory_info()
  return {
    'first': seconds[0],
    'round': sorted(seconds[1:])[(rounds - 1) // 2],
    'images': workload.images_per_round,
    'gflop': workload.flop_per_image * workload.images_per_round / 1e9,
    'rss_mb': getattr(memory, 'peak_wset', memory.rss) / 1e6,
    'gemm': ways.gemm_gflops(),
  }


def table(work: str, results: dict[str, dict[str, float]]) -> str:
  """The results as Markdown."""
  base = results['Keras fit, device by device']['round']
  step = results['one-step tf.function']['round']
  gflop = next(iter(results.values()))['gflop']
  gemm = max(result['gemm'] for result in results.values())
  limit = gflop / gemm
  lines = [
    f'## {work}',
    '',
    f'{gflop:.0f} GFLOP a round; matrix products reach {gemm:.0f} GFLOP/s '
    f'here, so the limit is {limit:.2f} s.',
    '',
    '| way | s / round | images / s | × Keras fit | × one-step | × limit | '
    'first round s | RSS MB |',
    '|---|---|---|---|---|---|---|---|',
  ]
  for name, result in results.items():
    seconds = result['round']
    lines.append(
      f'| {name} | {seconds:.2f} | {result["images"] / seconds:.0f} | '
      f'{base / seconds:.1f} | {step / seconds:.1f} | {seconds / limit:.1f} | '
      f'{result["first"]:.1f} | {result["rss_mb"]:.0f} |'
    )
  return '\n'.join(lines)


def main() -> None:
  """Runs all ways and prints, and maybe writes, the tables."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--work', choices=WORKS, help='only this work')
  parser.add_argument('--quick', action='store_true')
  parser.add_argument('--write', type=pathlib.Path, help='a Markdown file')
  parser.add_argument('--way', help=argparse.SUPPRESS)
  arguments = parser.parse_args()
  if arguments.way:
    result = measure(arguments.work, arguments.way, arguments.quick)
    print(json.dumps(result))
    return
  os.environ['TF_CPP_MIN_LOG_LEVEL'] = '3'
  from benchmarks import ways, workloads

  command_line = ' '.join(['python -m benchmarks.rounds', *sys.argv[1:]])
  texts = [
    '# Benchmarks',
    f'`{command_line}`, {datetime.date.today()}, {os.cpu_count()} cores '
    f'({platform.machine()}), no GPU. Absolute times on shared machines are '
    'noisy; the ratios, taken in one go, are what counts.',
  ]
  for work in [arguments.work] if arguments.work else WORKS:
    results = {}
    for way in ways.WAYS:
      command = [sys.executable, '-m', 'benchmarks.rounds', '--work', work]
      command += ['--way', way] + ['--quick'] * arguments.quick
      done = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
      )
      results[way] = json.loads(done.stdout.splitlines()[-1])
      print(f'{work}: {way}: {results[way]["round"]:.2f} s', flush=True)
    workload = workloads.get(work, arguments.quick)
    texts.append(table(workload.title, results))
  text = '\n\n'.join(texts) + '\n'
  print(text)
  if arguments.write:
    arguments.write.write_text(text)


if __name__ == '__main__':
  main()
