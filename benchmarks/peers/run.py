"""All frameworks on the common work, one after the other, each beside ours.

  python -m benchmarks.peers.prepare work.npz
  python -m benchmarks.peers.run work.npz ENVS --write=docs/benchmarks.md

ENVS is a folder with a virtual environment for each script, named like it:
ENVS/flower_torch and so on; see README.md here. Those that are missing are left
out and named. Before each framework comes a run of ours, so that a machine that
changes its pace does so for both.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
from typing import Any

from benchmarks import reports

HERE = pathlib.Path(__file__).parent
SCRIPTS = (
  'flower_torch',
  'flower_keras',
  'pfl_torch',
  'fedlab_torch',
  'fedjax_lenet',
  'tff_lenet',
)


def measure(command: list[str]) -> dict[str, Any]:
  """What a script reports; its last line on the standard output."""
  done = subprocess.run(command, capture_output=True, text=True)
  lines = [line for line in done.stdout.splitlines() if line.startswith('{')]
  if not lines:
    raise RuntimeError(f'{command} reported nothing:\n{done.stderr[-2000:]}')
  found = json.loads(lines[-1])
  print(json.dumps(found), file=sys.stderr, flush=True)
  if not found['same']:
    raise RuntimeError(f'{command} did not do the same work: {found}')
  return found


def section(work: str, environments: pathlib.Path) -> str:
  """The table as Markdown."""
  ours: list[float] = []
  rows, missing = [], []
  for script in SCRIPTS:
    python = environments / script / 'bin' / 'python'
    if not python.exists():
      missing.append(script)
      continue
    own = measure([sys.executable, '-m', 'benchmarks.peers.safl', work])
    found = measure([str(python), str(HERE / f'{script}.py'), work])
    ours.append(own['round'])
    rows.append(
      [
        f'{found["framework"]} {found["version"]}',
        f'{found["round"]:.1f}',
        f'{own["round"]:.2f}',
        f'{found["round"] / own["round"]:.1f}',
        f'{found["first"]:.1f}',
        f'{abs(found["test_loss"] - found["expected_loss"]):.0e}',
      ]
    )
  if not rows:
    sys.exit(f'{environments}: has none of {", ".join(SCRIPTS)}')
  heads = ['framework', 's / round', 'safl_tf beside it', 'ratio']
  heads += ['first round s', 'difference of test loss']
  devices = own['devices']
  left_out = f' Not installed: {", ".join(missing)}.' if missing else ''
  return '\n\n'.join(
    [
      f'## Other frameworks: FedAvg on {devices} devices × 600 digits',
      f'{reports.how("benchmarks.peers.run", "work.npz ENVS")} The median of '
      f'{len(found["seconds"]) - 1} rounds after the first; safl_tf takes '
      f'{statistics.median(ours):.2f} s. Every framework trains LeNet-5 on the '
      'same batches from the same weights and must end at the same test loss '
      f'({found["expected_loss"]:.4f}).{left_out}',
      reports.table(heads, rows),
    ]
  )


def main() -> None:
  """Measures and prints, and maybe writes, the table."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('work', help='what benchmarks.peers.prepare wrote')
  parser.add_argument('environments', type=pathlib.Path)
  parser.add_argument('--write', type=pathlib.Path, help='a Markdown file')
  arguments = parser.parse_args()
  text = section(arguments.work, arguments.environments)
  reports.write(arguments.write, 'peers', text)


if __name__ == '__main__':
  main()
