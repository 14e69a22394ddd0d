"""Reads files without waiting for pipes or exhausting the memory."""

import errno
import io
import os
import stat

import psutil


def shortage(needed: int) -> str | None:
  """Returns why this many bytes do not fit into memory; None if they do."""
  available = psutil.virtual_memory().available
  if needed <= available:
    return None
  return (
    f'needs {needed / 1e9:,.1f} GB of memory, but {available / 1e9:,.1f} GB '
    'are available'
  )


def open_regular(path: str | os.PathLike[str]) -> io.BufferedReader:
  """Opens a file to read bytes.

  Raises:
    OSError: the file cannot be opened, or is a folder, a pipe or a device.
  """
  name = os.fspath(path)
  try:
    # Does not wait for the other end of a pipe.
    descriptor = os.open(name, os.O_RDONLY | os.O_NONBLOCK)
  except ValueError as error:  # a NUL character
    raise OSError(errno.EINVAL, 'is not a path', name) from error
  if not stat.S_ISREG(os.fstat(descriptor).st_mode):
    os.close(descriptor)
    raise OSError(errno.EINVAL, 'is not a regular file', name)
  return os.fdopen(descriptor, 'rb')


def read_bytes(path: str | os.PathLike[str], factor: int = 1) -> bytes:
  """Returns the contents of a file.

  Args:
    path: the file.
    factor: the memory that its use takes, in sizes of the file.

  Raises:
    OSError: as `open_regular`, or there is too little memory.
  """
  with open_regular(path) as file:
    reason = shortage(factor * os.fstat(file.fileno()).st_size)
    if reason is not None:
      raise OSError(errno.ENOMEM, reason, os.fspath(path))
    return file.read()
