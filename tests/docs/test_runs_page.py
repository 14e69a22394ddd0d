"""The code of how_to/runs.md runs."""

import pytest

import safl_tf
from tests import tiny
from tests.docs import pages

PAGE = 'how_to/runs.md'
[PATIENCE] = [
  block for block in pages.blocks(PAGE) if 'class Patience' in block
]


def train(**options):
  return safl_tf.train(
    tiny.dense,
    tiny.clients(),
    test_data=tiny.blobs(30),
    config=safl_tf.LocalConfig(local_epochs=1, batch_size=8),
    jit_compile='false',
    progress=False,
    **options,
  )


@pytest.mark.usefixtures('no_outputs')
def test_the_code_runs(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  result = train(rounds=2, output_dir='runs/safl')
  other = safl_tf.build_safl(temperature=5)
  train(rounds=2, algorithm=other, output_dir='runs/cold')
  names = pages.run(PAGE, {})
  assert names['run'].history.equals(result.frame)
  x, _ = tiny.blobs(30)
  assert (names['model'](x) == result.model(x)).numpy().all()
  own = result.process.model.read(names['own'])
  assert own.tobytes() == result.state.client_models[3].tobytes()
  assert names['last']['round'].tolist() == [2, 2]
  assert names['best'].index.tolist() == [('safl', 5.0), ('safl', 80.0)]


def test_patience_stops():
  names = {'safl_tf': safl_tf}
  exec(PATIENCE, names)
  rising = [1.0, 0.9, None, 0.95, 0.97, 0.96, 0.5]
  callback = names['Patience'](3)
  callback.on_train_begin(type('Run', (), {'history': []}))
  stops = []
  for t, loss in enumerate(rising, start=1):
    callback.on_round_end(t, {'test_loss': loss}, None)
    stops.append(callback.stop)
  assert stops.index(True) == 5  # the third round without a lower loss
