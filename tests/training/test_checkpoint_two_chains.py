"""The newest two of several checkpoints share no file."""

import pytest

from tests.training import test_checkpoint as shared
from tests.training.test_checkpoint_chain import SIZE, Run, create


@pytest.mark.parametrize('keep', [2, 3])
def test_two_chains_in_turn(tmp_path, keep):
  """The newest two checkpoints have no file in common."""
  run = Run(tmp_path, keep)
  chains = [run.round(ids)[1] for ids in (range(30), [1], [2], [], [3])]
  assert chains == [[1], [2], [1, 3], [2, 4], [1, 3, 5]]
  run.check()
  written, files = run.round([4])
  assert files == [2, 4, 6] and 2 * SIZE * 4 < written < 3 * SIZE * 4
  run.check()
  shared.check_files(tmp_path)


def test_second_chain_begins_anew_after_a_resume(tmp_path):
  run = Run(tmp_path, keep=2)
  for ids in (range(30), [1], [2]):
    run.round(ids)
  again = Run(tmp_path, keep=2)
  restored = again.saved.restore_latest({'z': again.client_models})
  again.t, again.client_models = restored.round_number, restored.stores['z']
  chains = [again.round([k])[1] for k in range(3)]
  assert chains == [[4], [1, 3, 5], [4, 6]]
  again.check()


@pytest.mark.parametrize('keeps', [(1, 2), (2, 1), (3, 1, 2)])
def test_another_number_of_checkpoints_after_a_resume(tmp_path, keeps):
  client_models, t = create(), 0
  for keep in keeps:
    run = Run(tmp_path, keep, client_models)
    restored = run.saved.restore_latest({'z': create()})
    if restored is not None:
      run.client_models = restored.stores['z']
    run.t = t
    for ids in (range(30) if t == 0 else [5], [1], [2], [3]):
      files = run.round(ids)[1]
      run.check()
      if keep > 1 and run.t > t + 1:
        assert not set(files) & set(shared.chain(tmp_path, run.t - 1))
    client_models, t = run.client_models, run.t
