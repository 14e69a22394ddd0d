"""Certificates of the server and keys of the clients.

All keys are of the curve P-384, as Flower's nodes need them. Those of clients
are in the format of OpenSSH, so that a client can make its own:

  ssh-keygen -t ecdsa -b 384 -N '' -f client_0.key
"""

import datetime
import ipaddress
import os
import pathlib
import shutil
import ssl
import tempfile
from collections.abc import Mapping
from typing import NamedTuple

from cryptography import exceptions, x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from safl_tf.util import errors

_VALID = datetime.timedelta(days=5 * 365)
_CLOCKS = datetime.timedelta(days=1)  # by which clocks may differ
_PRIVATE = 0o600
_TAKES_KEY = "an ECDSA key of OpenSSH: ssh-keygen -t ecdsa -b 384 -N '' -f FILE"


class Security(NamedTuple):
  """What secures the connections with clients.

  Attributes:
    certificate: the file of the server's certificate; None for plain HTTP.
    key: the file of its private key.
    client_keys: client -> its public key, as PEM; None accepts anyone.
  """

  certificate: pathlib.Path | None = None
  key: pathlib.Path | None = None
  client_keys: Mapping[int, bytes] | None = None


def make(folder: pathlib.Path, host: str, num_clients: int) -> None:
  """Writes a private authority, the server's certificate and clients' keys.

  Either all files are written, into a new or empty folder, or none:

    ca.pem, ca.key          the authority
    server.pem, server.key  for the server
    client_K.key            for client K
    public_keys/            client_K.pub for the server

  Args:
    folder: for the files.
    host: the name or address by which clients reach the server.
    num_clients: n.
  """
  _general_name(host)
  if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
    hint = 'must be a new or empty folder: keys are never replaced'
    raise errors.InputError('make_certificates', folder, hint)
  folder.parent.mkdir(parents=True, exist_ok=True)
  temporary = pathlib.Path(tempfile.mkdtemp(dir=folder.parent))  # mode 0700
  try:
    _write_all(temporary, host, num_clients)
    os.replace(temporary, folder)
  except BaseException:
    shutil.rmtree(temporary, ignore_errors=True)
    raise


def _write_all(folder: pathlib.Path, host: str, num_clients: int) -> None:
  authority = ec.generate_private_key(ec.SECP384R1())
  ca = _certificate('safl_tf private authority', authority, None, authority)
  _write(folder / 'ca.key', _private(authority), _PRIVATE)
  _write(folder / 'ca.pem', ca.public_bytes(serialization.Encoding.PEM))
  key = ec.generate_private_key(ec.SECP384R1())
  own = _certificate(host, key, ca, authority)
  _write(folder / 'server.key', _private(key), _PRIVATE)
  _write(folder / 'server.pem', own.public_bytes(serialization.Encoding.PEM))
  (folder / 'public_keys').mkdir()
  for k in range(num_clients):
    key = ec.generate_private_key(ec.SECP384R1())
    _write(folder / f'client_{k}.key', _private(key, is_ssh=True), _PRIVATE)
    public = key.public_key().public_bytes(
      serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    _write(folder / 'public_keys' / f'client_{k}.pub', public + b'\n')


def _certificate(
  name: str,
  key: ec.EllipticCurvePrivateKey,
  issuer: x509.Certificate | None,
  signer: ec.EllipticCurvePrivateKey,
) -> x509.Certificate:
  """Returns a certificate; that of an authority has no issuer."""
  common = x509.NameAttribute(NameOID.COMMON_NAME, name[:64])
  subject = x509.Name([common])
  now = datetime.datetime.now(datetime.UTC)
  public = key.public_key()
  is_ca = issuer is None
  builder = (
    x509.CertificateBuilder()
    .subject_name(subject)
    .issuer_name(subject if issuer is None else issuer.subject)
    .public_key(public)
    .serial_number(x509.random_serial_number())
    .not_valid_before(now - _CLOCKS)
    .not_valid_after(now + _VALID)
    .add_extension(
      x509.BasicConstraints(is_ca, path_length=0 if is_ca else None), True
    )
    .add_extension(_usage(is_ca), True)
    .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), False)
    .add_extension(
      x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()),
      False,
    )
  )
  if not is_ca:
    builder = builder.add_extension(
      x509.SubjectAlternativeName([_general_name(name)]), False
    ).add_extension(
      x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False
    )
  return builder.sign(signer, hashes.SHA384())


def _usage(is_ca: bool) -> x509.KeyUsage:
  return x509.KeyUsage(
    digital_signature=not is_ca,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=is_ca,
    crl_sign=is_ca,
    encipher_only=False,
    decipher_only=False,
  )


def _general_name(host: str) -> x509.GeneralName:
  """Returns a name or an address as a certificate has it."""
  hint = 'must have the name or address by which clients reach the server'
  try:
    address = ipaddress.ip_address(host)
  except ValueError:
    try:
      return x509.DNSName(host)
    except ValueError as error:
      hint += ', in ASCII; names of other letters start with xn--'
      raise errors.InputError('address', host, hint) from error
  if address.is_unspecified:
    raise errors.InputError('address', host, hint)
  return x509.IPAddress(address)


def _private(key: ec.EllipticCurvePrivateKey, is_ssh: bool = False) -> bytes:
  formats = serialization.PrivateFormat
  return key.private_bytes(
    serialization.Encoding.PEM,
    formats.OpenSSH if is_ssh else formats.PKCS8,
    serialization.NoEncryption(),
  )


def _write(path: pathlib.Path, content: bytes, mode: int = 0o644) -> None:
  """Writes a new file, synced to disk."""
  number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
  with open(number, 'wb') as file:
    file.write(content)
    file.flush()
    os.fsync(file.fileno())


def check_server(certificate: pathlib.Path, key: pathlib.Path) -> None:
  """Refuses files other than a certificate and its private key."""
  context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)

  def no_password() -> str:
    raise errors.InputError('tls_key', key, 'must have no password')

  try:
    context.load_cert_chain(certificate, key, no_password)
  except (ssl.SSLError, OSError) as error:
    hint = (
      f'must be the private key of --tls_certificate={certificate}, both as '
      f'PEM ({errors.reason(error)})'
    )
    raise errors.InputError('tls_key', key, hint) from error


def check_authority(path: pathlib.Path) -> None:
  """Refuses a file without certificates."""
  try:
    ssl.create_default_context(cafile=str(path))
  except (ssl.SSLError, OSError) as error:
    hint = f'must be a file of certificates, as PEM ({errors.reason(error)})'
    raise errors.InputError('root_certificates', path, hint) from error


def check_private_key(path: pathlib.Path) -> None:
  """Refuses a file that is not the private key of a client."""
  try:
    key = serialization.load_ssh_private_key(path.read_bytes(), None)
  except (ValueError, TypeError, OSError, exceptions.UnsupportedAlgorithm):
    key = None
  if not isinstance(key, ec.EllipticCurvePrivateKey):
    raise errors.InputError('key', path, f'must be {_TAKES_KEY}')


def load(
  certificate: pathlib.Path | None,
  key: pathlib.Path | None,
  client_keys: pathlib.Path | None,
  num_clients: int,
) -> Security:
  """Returns the files that secure connections; refuses invalid ones.

  Args:
    certificate: of the server; None for plain HTTP.
    key: of the certificate.
    client_keys: the folder of the clients' public keys; None accepts anyone.
    num_clients: n.
  """
  if (certificate is None) != (key is None):
    missing = 'tls_key' if key is None else 'tls_certificate'
    other = 'tls_certificate' if key is None else 'tls_key'
    raise errors.InputError(missing, '', f'is required with {other}')
  if certificate is None or key is None:
    if client_keys is not None:
      hint = 'needs tls_certificate'
      raise errors.InputError('client_keys', client_keys, hint)
    return Security()
  check_server(certificate, key)
  if client_keys is None:
    return Security(certificate, key)
  keys = {}
  for k in range(num_clients):
    path = client_keys / f'client_{k}.pub'
    if not path.is_file():
      hint = f'has no {path.name}; one per client is needed'
      raise errors.InputError('client_keys', client_keys, hint)
    keys[k] = public_key(path)
  return Security(certificate, key, keys)


def check_client(
  authority: pathlib.Path | None, key: pathlib.Path | None
) -> None:
  """Refuses files that are not those of a client."""
  if authority is not None:
    check_authority(authority)
  if key is not None:
    if authority is None:
      raise errors.InputError('key', key, 'needs root_certificates')
    check_private_key(key)


def public_key(path: pathlib.Path) -> bytes:
  """Returns the public key in a file of OpenSSH, as PEM."""
  try:
    key = serialization.load_ssh_public_key(path.read_bytes())
  except (ValueError, OSError, exceptions.UnsupportedAlgorithm):
    key = None
  if not isinstance(key, ec.EllipticCurvePublicKey):
    hint = f'{path.name} must be the public part of {_TAKES_KEY}'
    raise errors.InputError('client_keys', path.parent, hint)
  return key.public_bytes(
    serialization.Encoding.PEM,
    serialization.PublicFormat.SubjectPublicKeyInfo,
  )
