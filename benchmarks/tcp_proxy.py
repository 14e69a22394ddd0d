"""A TCP proxy that counts bytes and can cut the network."""

import contextlib
import selectors
import socket
import threading
import time

_BUFFER = 2**16


class Proxy:
  """Forwards connections to a server of this machine; close it after use.

  Attributes:
    address: HOST:PORT to connect to.
    bytes_up: from clients to the server, everything above TCP included.
    bytes_down: from the server to clients.
    is_cut: whether nothing passes: open connections stay and are silent, new
      ones are accepted and are silent too.

  Args:
    port: of the server.
  """

  def __init__(self, port: int):
    self._target = ('127.0.0.1', port)
    self._listener = socket.create_server(('127.0.0.1', 0))
    self.address = f'127.0.0.1:{self._listener.getsockname()[1]}'
    self.bytes_up = self.bytes_down = 0
    self.is_cut = False
    threading.Thread(target=self._accept, daemon=True).start()

  def close(self) -> None:
    """Accepts no further connections."""
    self._listener.close()

  def _accept(self) -> None:
    with contextlib.suppress(OSError):
      while True:
        client, _ = self._listener.accept()
        thread = threading.Thread(
          target=self._forward, args=(client,), daemon=True
        )
        thread.start()

  def _forward(self, client: socket.socket) -> None:
    """Copies both ways until one side ends."""
    with contextlib.suppress(OSError), client:
      while self.is_cut:
        time.sleep(0.05)
      with (
        socket.create_connection(self._target) as server,
        selectors.DefaultSelector() as selector,
      ):
        selector.register(client, selectors.EVENT_READ, server)
        selector.register(server, selectors.EVENT_READ, client)
        while True:
          for key, _ in selector.select(timeout=1):
            while self.is_cut:
              time.sleep(0.05)
            source = key.fileobj
            assert isinstance(source, socket.socket)
            data = source.recv(_BUFFER)
            if not data:
              return
            key.data.sendall(data)
            if source is client:
              self.bytes_up += len(data)
            else:
              self.bytes_down += len(data)
