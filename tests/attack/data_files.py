"""Writes data files and reads them back."""

import io
import struct
import zipfile
import zlib

import numpy as np
import pytest

from safl_tf.data import registry
from safl_tf.data.files import spec
from safl_tf.util import errors


def load(name, **options):
  options = spec.Options(**{'test_fraction': 1, **options})
  return registry.load(name, None, options)


def refusal(name, **options):
  """The error's one line, after the name of the data set."""
  with pytest.raises(errors.InputError) as caught:
    load(name, **options)
  assert caught.value.argument == 'dataset'
  message = str(caught.value)
  assert message.startswith(f'dataset={name}: ')
  assert len(message.splitlines()) == 1
  return caught.value.hint


def npy(array):
  file = io.BytesIO()
  np.save(file, array)
  return file.getvalue()


def npy_header(text, data=b''):
  text = text.encode() + b'\n'
  return b'\x93NUMPY\1\0' + struct.pack('<H', len(text)) + text + data


def header(shape, descr='<f4', order=False):
  return f"{{'descr': {descr!r}, 'fortran_order': {order}, 'shape': {shape}}}"


def write_npz(path, members):
  with zipfile.ZipFile(path, 'w') as archive:
    for name, content in members:
      archive.writestr(name, content)
  return f'npz:{path}'


def png(height, width, data=b''):
  chunk = lambda kind, body: (
    struct.pack('>I', len(body))
    + kind
    + body
    + struct.pack('>I', zlib.crc32(kind + body))
  )
  size = struct.pack('>IIBBBBB', width, height, 8, 0, 0, 0, 0)
  body = zlib.compress(data or bytes((width + 1) * height))
  return b'\x89PNG\r\n\x1a\n' + b''.join(
    [chunk(b'IHDR', size), chunk(b'IDAT', body), chunk(b'IEND', b'')]
  )


def write_png(path, shape, data=b''):
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_bytes(png(*shape, data))
