"""The code of docs/runs.md runs."""

import pathlib
import re

import pytest

import safl_tf
from tests import tiny

PAGE = pathlib.Path(__file__).parent.parent / 'docs' / 'runs.md'
BLOCKS = re.findall(r'```python\n(.*?)```', PAGE.read_text(), re.DOTALL)
# Other blocks need what a user has: rules, models, an export.
USERS = ('my_mix', 'my_keras_model_fn', 'export/saved_model')
SECTIONS = [b for b in BLOCKS if not any(name in b for name in USERS)]
[PATIENCE] = [block for block in BLOCKS if 'class Patience' in block]


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
  names = {}
  for i, block in enumerate(SECTIONS):
    exec(compile(block, f'{PAGE.name}, block {i + 1}', 'exec'), names)
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
