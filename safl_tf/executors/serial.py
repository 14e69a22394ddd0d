"""One device after the other."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from safl_tf import local


def serial() -> Any:
  """The plain loop."""

  def run(
    local_update: Callable[[local.Task], local.Update],
    task: Callable[[int], local.Task],
    ids: Iterable[int],
  ) -> Iterator[local.Update]:
    for k in ids:
      yield local_update(task(k))

  return run
