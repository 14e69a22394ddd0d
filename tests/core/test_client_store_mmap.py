"""The store that has its models in a memory-mapped file."""

import errno
import gc
import os
import subprocess
import sys
import tempfile
import threading
import time

import ml_dtypes
import numpy as np
import psutil
import pytest

from safl_tf.core import client_store
from safl_tf.util import atomic_io


def nothing(k):
  raise AssertionError(f'client {k} has a model')


def create(folder, initial=nothing):
  return client_store.create('mmap', initial, folder)


def rows(numbers, size=3):
  return {k: np.full(size, k, np.float32) for k in numbers}


def check_in_use(clients, count):
  """Only so many places are taken, and each other one is free once."""
  backend = clients._backend
  assert backend._used - len(backend.free) == count
  assert len(set(backend.free)) == len(backend.free)


@pytest.fixture
def short_segments(monkeypatch):
  """Every segment has room for four models of three numbers."""
  monkeypatch.setattr(client_store, '_SEGMENT_BYTES', 4 * 12)


def test_the_file_comes_with_the_first_model(tmp_path):
  folder = tmp_path / 'run'
  clients = create(folder, initial=lambda k: np.zeros(3))
  np.testing.assert_array_equal(clients[1], [0, 0, 0])
  assert not folder.exists()
  with pytest.raises(FileNotFoundError):
    clients.updated(rows([1]))
  folder.mkdir()
  np.testing.assert_array_equal(clients.updated(rows([1]))[1], [1, 1, 1])
  assert os.listdir(folder) == []  # it has no name


def test_a_killed_process_leaves_a_file_that_is_removed(tmp_path, monkeypatch):
  """Where the file system has no unnamed files."""

  def killed(*args, **options):
    raise KeyboardInterrupt

  with monkeypatch.context() as patch:
    patch.setattr(tempfile, '_O_TMPFILE_WORKS', False)
    patch.setattr(os, 'unlink', killed)
    with pytest.raises(KeyboardInterrupt):
      create(tmp_path).updated(rows([1]))
  assert len(os.listdir(tmp_path)) == 1
  assert atomic_io.remove_leftovers(tmp_path) == 1


def test_without_a_folder():
  np.testing.assert_array_equal(create(None).updated(rows([1]))[1], [1, 1, 1])


def test_grows_in_segments(tmp_path, short_segments):
  clients = create(tmp_path)
  for k in range(30):
    clients = clients.updated(rows([k]))
  assert len(clients._backend._segments) == 8
  for k in range(30):
    np.testing.assert_array_equal(clients[k], [k, k, k])


def test_a_model_larger_than_a_segment(tmp_path, monkeypatch):
  monkeypatch.setattr(client_store, '_SEGMENT_BYTES', 1000)
  clients = create(tmp_path).updated(rows(range(5), 5000))
  for k in range(5):
    np.testing.assert_array_equal(clients[k], np.full(5000, k))


def test_room_is_used_again(tmp_path, short_segments):
  clients = create(tmp_path).updated(rows(range(4)))
  for _ in range(50):
    clients = clients.updated(rows([1, 2]))
  assert len(clients._backend._segments) == 2  # two values
  kept = [clients := clients.updated(rows([0])) for _ in range(10)]
  assert len(clients._backend._segments) > 2
  del kept
  gc.collect()
  check_in_use(clients, 4)


def test_what_was_read_does_not_change(tmp_path, short_segments):
  clients = create(tmp_path).updated(rows([1]))
  read = clients[1]
  for k in range(2, 40):
    clients = clients.updated({1: np.full(3, k, np.float32)})
  check_in_use(clients, 1)
  np.testing.assert_array_equal(read, [1, 1, 1])


@pytest.mark.parametrize('wrong', [(2,), (1,), (), (3, 1), (1, 3)])
def test_arrays_of_another_shape_are_refused(tmp_path, wrong):
  clients = create(tmp_path).updated(rows([1]))
  with pytest.raises(ValueError, match=r'the store are float32 \[3\]'):
    clients.updated({1: np.zeros(wrong, np.float32)})


def test_arrays_of_another_dtype_are_refused(tmp_path, short_segments):
  clients = create(tmp_path).updated(rows([1]))
  for _ in range(9):  # and take no room
    with pytest.raises(ValueError, match='an array is float64'):
      clients.updated({1: np.zeros(3)})
  assert len(clients._backend._segments) == 1


def test_handles_free_their_room(tmp_path, short_segments):
  clients = create(tmp_path).updated(rows(range(3)))
  for _ in range(20):
    clients.put(np.ones(3, np.float32))
  handle = clients.put(np.ones(3, np.float32))
  check_in_use(clients, 4)
  clients = clients.updated({9: handle})
  del handle
  check_in_use(clients, 4)
  clients = clients.updated(rows([9]))
  gc.collect()
  check_in_use(clients, 4)
  assert len(clients._backend._segments) <= 2


def test_a_refused_handle_takes_no_room(tmp_path):
  clients = create(tmp_path).updated(rows([1]))
  with pytest.raises(ValueError, match='no handle'):
    clients.updated({2: np.ones(3, np.float32), 3: None})
  gc.collect()
  check_in_use(clients, 1)


def test_nothing_needs_no_file(tmp_path):
  clients = create(tmp_path / 'absent').updated({1: np.zeros((3, 0))})
  assert clients[1].shape == (3, 0)
  with pytest.raises(ValueError, match=r'float64 \[3, 0\]'):
    clients.updated(rows([1]))


def test_threads_agree_on_the_type(tmp_path):
  """The first array determines it, whichever it is."""
  for _ in range(20):
    clients, done = create(tmp_path), []
    barrier = threading.Barrier(4)

    def work(size, clients=clients, done=done, barrier=barrier):
      barrier.wait()
      try:
        done.append(clients.put(np.full(size, size, np.float32)))
      except ValueError:
        done.append(None)

    sizes = (3, 3, 5, 5)
    threads = [threading.Thread(target=work, args=(n,)) for n in sizes]
    for thread in threads:
      thread.start()
    for thread in threads:
      thread.join()
    read = [handle.read() for handle in done if handle]
    assert len(read) == 2 and read[0].tobytes() == read[1].tobytes()
    assert read[0].tolist() == [len(read[0])] * len(read[0])


def test_narrow_numbers(tmp_path):
  dtype = np.dtype(ml_dtypes.bfloat16)
  model = np.array([1.5, -2, 0.1]).astype(dtype)
  read = create(tmp_path).updated({0: model})[0]
  assert read.dtype == dtype and read.tobytes() == model.tobytes()


def test_full_disk(tmp_path, monkeypatch):
  clients = create(tmp_path).updated(rows([0]))
  monkeypatch.setattr(client_store, '_SEGMENT_BYTES', 4 * 12)
  small = create(tmp_path).updated(rows(range(4)))

  def full(*args):
    raise OSError(errno.ENOSPC, 'No space left on device')

  monkeypatch.setattr(os, 'posix_fallocate', full)
  with pytest.raises(OSError) as caught:
    small.updated(rows(range(4)))
  assert caught.value.errno == errno.ENOSPC
  assert caught.value.filename == str(tmp_path)
  assert "no space for 0 MB more of clients' arrays (No space" in str(
    caught.value
  )
  clients.updated(rows([1]))  # has room already
  for k in range(4):
    np.testing.assert_array_equal(small[k], [k, k, k])
  monkeypatch.undo()
  np.testing.assert_array_equal(small.updated(rows([9]))[9], [9, 9, 9])


def test_really_no_room(tmp_path):
  script = (
    'import resource, sys\n'
    'import numpy as np\n'
    'from safl_tf.core import client_store\n'
    'resource.setrlimit(resource.RLIMIT_FSIZE, (10_000_000, 10_000_000))\n'
    'clients = client_store.create("mmap", None, sys.argv[1])\n'
    'clients.updated({1: np.ones(3, np.float32)})\n'
  )
  command = [sys.executable, '-c', script, str(tmp_path)]
  done = subprocess.run(command, capture_output=True, text=True, check=False)
  assert done.returncode == 1
  assert done.stderr.endswith(
    "no space for 67 MB more of clients' arrays (File too large): "
    f"'{tmp_path}'\n"
  )


@pytest.mark.skipif(
  not hasattr(os, 'posix_fallocate'), reason='no reserving on this platform'
)
def test_the_room_is_reserved(tmp_path):
  """Not only a length: nothing is missing when a page is written to."""
  clients = create(tmp_path).updated(rows([0]))
  result = os.fstat(clients._backend._file.fileno())
  assert result.st_blocks * 512 >= result.st_size > 60e6


def test_nothing_is_left_by_a_killed_process(tmp_path):
  script = (
    'import os, sys\n'
    'import numpy as np\n'
    'from safl_tf.core import client_store\n'
    'clients = client_store.create("mmap", None, sys.argv[1])\n'
    'clients = clients.updated({1: np.ones(3, np.float32)})\n'
    'os.kill(os.getpid(), 9)\n'
  )
  command = [sys.executable, '-c', script, str(tmp_path)]
  assert subprocess.run(command, check=False).returncode == -9
  assert os.listdir(tmp_path) == []


def test_the_file_is_closed_with_the_last_value(tmp_path):
  clients = create(tmp_path).updated(rows([1]))
  file = clients._backend._file
  del clients
  gc.collect()
  assert file.closed


def test_memory_does_not_grow_with_the_models(tmp_path):
  size = 25_000  # 100 KB
  model = np.arange(size, dtype=np.float32)
  clients = create(tmp_path).updated({0: model})
  process = psutil.Process()
  before = process.memory_info().rss
  for k in range(2000):
    clients = clients.updated({k: model + k})
  written = process.memory_info().rss
  for k in range(2000):
    assert np.array_equal(clients[k], model + k)
  read = process.memory_info().rss
  assert written - before < 30e6
  assert read - before < 30e6


def test_threads_read_while_others_write(tmp_path, short_segments):
  """Many values come and go; what a thread reads of its own is right."""
  start = create(tmp_path).updated(rows(range(20)))
  stop = time.monotonic() + 2
  wrong = []

  def work(number):
    random = np.random.default_rng(number)
    clients, expected = start, {k: k for k in range(20)}
    while time.monotonic() < stop and not wrong:
      k, value = random.integers(20), random.integers(1000)
      clients = clients.updated({int(k): np.full(3, value, np.float32)})
      expected[int(k)] = value
      k = int(random.integers(20))
      if not (clients[k] == expected[k]).all() or not (start[k] == k).all():
        wrong.append((number, k))

  threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert wrong == []
  gc.collect()
  check_in_use(start, 20)


def test_updating_a_large_store_is_quick(tmp_path):
  clients = create(tmp_path)
  clients = clients.updated(rows(range(100_000), 1))
  changed = rows(range(0, 100_000, 2000), 1)
  times = []
  for _ in range(9):
    start = time.perf_counter()
    clients = clients.updated(changed)
    times.append(time.perf_counter() - start)
  assert sorted(times)[4] < 0.05  # measured: 3 ms
