"""Connections that are not secure are named at each start."""

import pathlib

import pytest

from safl_tf.deployment import certificates
from safl_tf.deployment.flower import link, node, resident
from safl_tf.util import validation

ADDRESS = validation.Address('fl.example.org', 9092)
FILE = pathlib.Path('file.pem')


@pytest.mark.parametrize(
  'security, warning',
  [
    ((None, None, None), 'without --tls_certificate models travel in the cl'),
    ((FILE, FILE, None), 'without --client_keys anybody who reaches fl.exam'),
    ((FILE, FILE, {0: b''}), None),
  ],
)
def test_server(monkeypatch, caplog, tmp_path, security, warning):
  for name in ('open', 'close'):
    monkeypatch.setattr(link.Link, name, lambda self: None)
  security = certificates.Security(*security)
  with link.connected(ADDRESS, security, tmp_path, round_timeout=1):
    pass
  check(caplog, warning)


@pytest.mark.parametrize(
  'authority, warning',
  [(None, 'without --root_certificates the server is not ver'), (FILE, None)],
)
def test_client(monkeypatch, caplog, tmp_path, authority, warning):
  monkeypatch.setattr(node, 'problem', lambda server: 'not there')
  monkeypatch.setattr(node, 'work', lambda *arguments: None)
  server = node.Server(ADDRESS, authority)
  resident.run(None, server, tmp_path, max_wait=60)
  check(caplog, warning)


def check(caplog, expected):
  """Compares the start of the only warning."""
  found = [
    record.getMessage()
    for record in caplog.records
    if record.levelname == 'WARNING' and 'without' in record.getMessage()
  ]
  assert len(found) == (expected is not None)
  assert all(text.startswith(expected) for text in found)
