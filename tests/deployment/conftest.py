import pytest

from safl_tf.deployment import members


@pytest.fixture
def hurried(monkeypatch):
  """The server looks and asks again at once."""
  for name in ('_LOOK', '_RETRY', '_PING_GRACE'):
    monkeypatch.setattr(members, name, 0.0)
