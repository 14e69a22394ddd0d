import pytest


@pytest.fixture
def no_outputs(monkeypatch):
  """Runs leave neither plots nor exports, which take longer than training."""
  from safl_tf.training import outputs

  monkeypatch.setattr(outputs, 'write', lambda *args: None)
