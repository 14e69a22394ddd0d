"""Times all frameworks on the same workload, each next to a run of safl_tf.

  python -m benchmarks.peers.prepare work.npz
  python -m benchmarks.peers.run work.npz ENVS --write=docs/benchmarks.md

ENVS is a folder with a virtual environment for each script, by its name:
ENVS/flower_torch etc.; see README.md. Missing ones are skipped and listed. A
run of safl_tf precedes each framework, so that changes in the machine's speed
affect both.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
from typing import Any

from benchmarks import reports
from safl_tf.reporting import tables

HERE = pathlib.Path(__file__).parent
SCRIPTS = (
  'flower_torch',
  'flower_keras',
  'pfl_torch',
  'fedlab_torch',
  'fedjax_haiku',
  'tff_keras',
)


def measure(command: list[str]) -> dict[str, Any]:
  """Returns a script's report, the last line of JSON on standard output."""
  done = subprocess.run(command, capture_output=True, text=True)
  lines = [line for line in done.stdout.splitlines() if line.startswith('{')]
  if not lines:
    raise RuntimeError(f'{command} reported nothing:\n{done.stderr[-2000:]}')
  report = json.loads(lines[-1])
  print(json.dumps(report), file=sys.stderr, flush=True)
  if not report['same']:
    raise RuntimeError(f'{command} has another test loss: {report}')
  return report


def section(work: str, environments: pathlib.Path) -> tuple[str, str]:
  """Returns the section's name and the table as Markdown."""
  ours: list[float] = []
  headings = ['framework', 's / round', 'safl_tf beside it', 'ratio']
  headings += ['first round s', 'difference of test loss']
  rows, missing = [headings], []
  for script in SCRIPTS:
    python = environments / script / 'bin' / 'python'
    if not python.exists():
      missing.append(script)
      continue
    own = measure([sys.executable, '-m', 'benchmarks.peers.safl', work])
    other = measure([str(python), str(HERE / f'{script}.py'), work])
    ours.append(own['round'])
    rows.append(
      [
        f'{other["framework"]} {other["version"]}',
        f'{other["round"]:.1f}',
        f'{own["round"]:.2f}',
        f'{other["round"] / own["round"]:.1f}',
        f'{other["first"]:.1f}',
        f'{abs(other["test_loss"] - other["expected_loss"]):.0e}',
      ]
    )
  if not ours:
    sys.exit(f'{environments}: has none of {", ".join(SCRIPTS)}')
  left_out = f' Not installed: {", ".join(missing)}.' if missing else ''
  text = '\n\n'.join(
    [
      f'## Other frameworks: FedAvg of {own["model"]} on {own["clients"]} '
      'clients × 600 digits',
      f'{reports.provenance("benchmarks.peers.run", "work.npz ENVS")} The '
      f'median of {len(other["seconds"]) - 1} rounds after the first; safl_tf '
      f'takes {statistics.median(ours):.2f} s. Every framework trains on the '
      'same batches from the same weights and must reach the same test '
      f'loss ({other["expected_loss"]:.4f}).{left_out}',
      tables.to_markdown(rows).rstrip(),
    ]
  )
  return f'peers: {own["model"]}', text


def main() -> None:
  """Measures, prints the table and optionally writes it."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('work', help='the file of benchmarks.peers.prepare')
  parser.add_argument('environments', type=pathlib.Path)
  parser.add_argument('--write', type=pathlib.Path, help='a Markdown file')
  arguments = parser.parse_args()
  name, text = section(arguments.work, arguments.environments)
  reports.write(arguments.write, name, text)


if __name__ == '__main__':
  main()
