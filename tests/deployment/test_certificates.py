"""Files of keys and certificates: those that are made, and those given."""

import contextlib
import datetime
import shutil
import socket
import ssl
import subprocess
import threading

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from safl_tf.deployment import certificates
from safl_tf.util import errors

HOST = 'fl.example.org'


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """The files for two clients; not to be changed."""
  path = tmp_path_factory.mktemp('made') / 'below' / 'certificates'
  certificates.make(path, HOST, 2)
  return path


def test_files(folder):
  found = {
    str(path.relative_to(folder)): oct(path.stat().st_mode & 0o777)
    for path in [folder, *folder.rglob('*')]
  }
  assert found == {
    '.': '0o700',
    'ca.key': '0o600',
    'ca.pem': '0o644',
    'client_0.key': '0o600',
    'client_1.key': '0o600',
    'public_keys': '0o755',
    'public_keys/client_0.pub': '0o644',
    'public_keys/client_1.pub': '0o644',
    'server.key': '0o600',
    'server.pem': '0o644',
  }
  assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_keys_belong_together(folder):
  publics = set()
  for k in range(2):
    path = folder / f'client_{k}.key'
    private = serialization.load_ssh_private_key(path.read_bytes(), None)
    assert private.curve.name == 'secp384r1'
    public = certificates.public_key(folder / f'public_keys/client_{k}.pub')
    assert public == private.public_key().public_bytes(
      serialization.Encoding.PEM,
      serialization.PublicFormat.SubjectPublicKeyInfo,
    )
    publics.add(public)
  assert len(publics) == 2


def test_what_certificates_say(folder):
  now = datetime.datetime.now(datetime.UTC)
  ca, own = (
    x509.load_pem_x509_certificate((folder / name).read_bytes())
    for name in ('ca.pem', 'server.pem')
  )
  for certificate in (ca, own):
    begin, end = (
      certificate.not_valid_before_utc,
      certificate.not_valid_after_utc,
    )
    assert begin < now < now + datetime.timedelta(days=5 * 365 - 1) < end
  of = lambda kind: own.extensions.get_extension_for_class(kind).value
  assert not of(x509.BasicConstraints).ca
  assert of(x509.SubjectAlternativeName).get_values_for_type(x509.DNSName) == [
    HOST
  ]
  own.verify_directly_issued_by(ca)


def connect(folder, host, authority):
  """What a client that knows an authority says of a server."""
  server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
  server.load_cert_chain(folder / 'server.pem', folder / 'server.key')
  client = ssl.create_default_context(cafile=authority)
  client.verify_flags |= ssl.VERIFY_X509_STRICT
  one, other = socket.socketpair()

  def serve():
    with (
      contextlib.suppress(OSError),
      server.wrap_socket(other, server_side=True) as connection,
    ):
      connection.sendall(b'hello')

  thread = threading.Thread(target=serve)
  thread.start()
  try:
    with client.wrap_socket(one, server_hostname=host) as connection:
      return connection.recv(5)
  finally:
    one.close()
    thread.join()
    other.close()


def test_a_connection(folder, tmp_path):
  assert connect(folder, HOST, folder / 'ca.pem') == b'hello'
  for host in ('other.example.org', '127.0.0.1', 'example.org'):
    with pytest.raises(ssl.SSLCertVerificationError, match='valid for'):
      connect(folder, host, folder / 'ca.pem')
  certificates.make(tmp_path / 'other', HOST, 1)
  with pytest.raises(ssl.SSLCertVerificationError):
    connect(folder, HOST, tmp_path / 'other' / 'ca.pem')


@pytest.mark.parametrize('host', ['127.0.0.1', '::1', 'a_b', 'x' * 60 + '.org'])
def test_hosts(tmp_path, host):
  certificates.make(tmp_path / 'own', host, 1)
  authority = tmp_path / 'own' / 'ca.pem'
  assert connect(tmp_path / 'own', host, authority) == b'hello'
  with pytest.raises(ssl.SSLCertVerificationError):
    connect(tmp_path / 'own', HOST, authority)


@pytest.mark.parametrize(
  'host', ['0.0.0.0', '::', '0:0::0', '::0', 'exämple.org']
)
def test_hosts_that_clients_cannot_reach(tmp_path, host):
  with pytest.raises(errors.InputError) as error:
    certificates.make(tmp_path / 'own', host, 1)
  hint = 'must have the name or address by which clients reach the server'
  assert str(error.value).startswith(f'address={host}: {hint}')
  assert not list(tmp_path.iterdir())


def test_a_folder_in_use(folder, tmp_path):
  (tmp_path / 'file').write_text('x')
  (tmp_path / 'empty').mkdir()
  for path in (tmp_path, tmp_path / 'file', folder):
    with pytest.raises(errors.InputError) as error:
      certificates.make(path, HOST, 1)
    assert str(error.value) == (
      f'make_certificates={path}: must be a new or empty folder: keys are '
      'never replaced'
    )
  assert {path.name for path in tmp_path.iterdir()} == {'file', 'empty'}
  certificates.make(tmp_path / 'empty', HOST, 1)
  assert (tmp_path / 'empty' / 'ca.pem').exists()


def test_all_files_or_none(tmp_path, monkeypatch):
  written = []
  write = certificates._write

  def fail(path, *args):
    written.append(path)
    if len(written) == 6:
      raise OSError(28, 'No space left on device')
    write(path, *args)

  monkeypatch.setattr(certificates, '_write', fail)
  with pytest.raises(OSError, match='No space'):
    certificates.make(tmp_path / 'own', HOST, 2)
  assert not list(tmp_path.iterdir())


# -- Files that a user gives.


@pytest.fixture(scope='module')
def files(folder, tmp_path_factory):
  """Files of all kinds, by name."""
  path = tmp_path_factory.mktemp('files')
  shutil.copytree(folder, path, dirs_exist_ok=True)
  (path / 'empty').write_bytes(b'')
  (path / 'text').write_text('not a key\n')
  (path / 'binary').write_bytes(bytes(range(256)))
  (path / 'folder').mkdir()
  plain, encodings = serialization.PublicFormat, serialization.Encoding
  private, no = serialization.PrivateFormat, serialization.NoEncryption()
  secret = serialization.BestAvailableEncryption(b'secret')
  key = ec.generate_private_key(ec.SECP384R1())
  of_rsa = rsa.generate_private_key(65537, 2048)
  (path / 'locked.pem').write_bytes(
    key.private_bytes(encodings.PEM, private.PKCS8, secret)
  )
  (path / 'rsa.key').write_bytes(
    of_rsa.private_bytes(encodings.PEM, private.OpenSSH, no)
  )
  (path / 'rsa.pub').write_bytes(
    of_rsa.public_key().public_bytes(encodings.OpenSSH, plain.OpenSSH)
  )
  (path / 'cut.pub').write_bytes(
    (folder / 'public_keys' / 'client_0.pub').read_bytes()[:50]
  )
  return path


def test_what_is_right(files):
  certificates.check_server(files / 'server.pem', files / 'server.key')
  certificates.check_authority(files / 'ca.pem')
  certificates.check_authority(files / 'server.pem')
  certificates.check_private_key(files / 'client_0.key')


@pytest.mark.parametrize(
  'certificate, key, reason',
  [
    ('server.pem', 'ca.key', 'values mismatch'),
    ('ca.pem', 'server.key', 'values mismatch'),
    ('server.key', 'server.pem', ''),
    ('server.pem', 'server.pem', ''),
    ('server.pem', 'client_0.key', ''),
    ('empty', 'server.key', ''),
    ('server.pem', 'empty', ''),
    ('text', 'text', ''),
    ('binary', 'binary', ''),
    ('server.pem', 'missing', 'No such file'),
    ('folder', 'server.key', ''),
  ],
)
def test_files_of_the_server(files, certificate, key, reason):
  with pytest.raises(errors.InputError) as error:
    certificates.check_server(files / certificate, files / key)
  message = str(error.value)
  assert message.startswith(
    f'tls_key={files / key}: must be the private key of '
    f'--tls_certificate={files / certificate}, both as PEM ('
  )
  assert reason in message and '\n' not in message


def test_a_key_with_a_password(files):
  with pytest.raises(errors.InputError, match='must have no password'):
    certificates.check_server(files / 'server.pem', files / 'locked.pem')


@pytest.mark.parametrize(
  'name', ['empty', 'text', 'binary', 'ca.key', 'missing', 'folder']
)
def test_files_of_authorities(files, name):
  with pytest.raises(errors.InputError) as error:
    certificates.check_authority(files / name)
  message = str(error.value)
  hint = 'must be a file of certificates, as PEM ('
  assert message.startswith(f'root_certificates={files / name}: {hint}')
  assert '\n' not in message


@pytest.mark.parametrize(
  'name',
  [
    'empty',
    'text',
    'binary',
    'missing',
    'folder',
    'locked.pem',
    'rsa.key',
    'server.key',
    'public_keys/client_0.pub',
  ],
)
def test_private_keys_of_clients(files, name):
  with pytest.raises(errors.InputError) as error:
    certificates.check_private_key(files / name)
  assert str(error.value) == (
    f'key={files / name}: must be an ECDSA key of OpenSSH: ssh-keygen -t ecdsa '
    "-b 384 -N '' -f FILE"
  )


@pytest.mark.parametrize(
  'name',
  ['empty', 'text', 'binary', 'missing', 'client_0.key', 'rsa.pub', 'cut.pub'],
)
def test_public_keys_of_clients(files, name):
  with pytest.raises(errors.InputError) as error:
    certificates.public_key(files / name)
  assert str(error.value).startswith(
    f'client_keys={files}: {name} must be the public part of an ECDSA key of '
  )


@pytest.mark.skipif(shutil.which('ssh-keygen') is None, reason='not installed')
def test_keys_of_openssh(tmp_path):
  """A client can make its own, as the documentation says."""

  def make(name, password=''):
    path = tmp_path / name
    command = ['ssh-keygen', '-q', '-t', 'ecdsa', '-b', '384', '-N', password]
    subprocess.run([*command, '-f', str(path)], check=True)
    return path

  certificates.check_private_key(make('own'))
  assert certificates.public_key(tmp_path / 'own.pub').startswith(b'-----')
  with pytest.raises(errors.InputError, match='must be an ECDSA key of'):
    certificates.check_private_key(make('locked', 'a secret'))
