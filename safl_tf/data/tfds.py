"""TFDS's files: where they are, downloading them, and when they are broken."""

import os
import re
import tempfile
import urllib.parse
from typing import Any

from safl_tf.util import errors

_DEFAULT_FOLDER = '~/tensorflow_datasets'  # TFDS's own
_PROBE_SECONDS = 5


def tfds_folder(data_dir: str | None) -> str:
  """Where TFDS data sets are; see `load`."""
  if data_dir is not None and not os.path.isdir(os.path.expanduser(data_dir)):
    raise errors.InputError('data_dir', data_dir, 'must be an existing folder')
  folder = data_dir or os.environ.get('TFDS_DATA_DIR') or _DEFAULT_FOLDER
  return os.path.abspath(os.path.expanduser(folder))


def download(builder: Any, folder: str) -> None:
  """Downloads and prepares; when that fails, leaves `folder` as it was."""
  made = not os.path.isdir(folder)
  try:
    for url in list(builder.url_infos or ())[:1]:
      _check_connection(url)
    os.makedirs(folder, exist_ok=True)
    with tempfile.TemporaryDirectory(
      prefix='download.', dir=folder, ignore_cleanup_errors=True
    ) as downloads:
      builder.download_and_prepare(download_dir=downloads)
  finally:
    _remove_if_empty(os.path.join(folder, builder.name))
    if made:
      _remove_if_empty(folder)


def _check_connection(url: str) -> None:
  """Raises within seconds if there is no way to `url`.

  TFDS would try again and again for more than three minutes.
  """
  import requests

  host = urllib.parse.urlsplit(url).hostname
  try:
    answer = requests.head(url, timeout=_PROBE_SECONDS)
  except requests.RequestException as error:
    raise ConnectionError(f'no connection to {host}') from error
  if answer.status_code >= 500:
    raise ConnectionError(f'{host} answers with error {answer.status_code}')


def _remove_if_empty(folder: str) -> None:
  if os.path.isdir(folder) and not os.listdir(folder):
    os.rmdir(folder)


def unreadable(name: str, folder: str, error: Exception) -> errors.InputError:
  """What to raise when a data set is in `folder` but cannot be read."""
  return errors.InputError(
    'dataset',
    name,
    f'what is in {folder} cannot be read ({one_line(error)}); remove it and '
    'load it again, or set --data_dir or TFDS_DATA_DIR to another folder',
  )


def one_line(error: Exception) -> str:
  """The error's kind and the beginning of what it says."""
  said = re.sub(r'\{\{.*?\}\}', '', str(error))  # TensorFlow's op names
  said = ' '.join(said.split())
  return f'{type(error).__name__}: {said[:120]}'
