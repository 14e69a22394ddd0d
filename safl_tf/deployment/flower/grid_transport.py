"""A transport over Flower's Grid."""

from collections.abc import Mapping, Sequence

from flwr.app import Message
from flwr.serverapp import Grid

from safl_tf.deployment import transport
from safl_tf.deployment.flower import payload


class GridTransport:
  """Carries messages through a Grid; see `transport.Transport`.

  Args:
    grid: of a running ServerApp.
    ttl: seconds after which Flower forgets a message.
    clients: node -> the client whose key it has; None without keys.
  """

  def __init__(
    self,
    grid: Grid,
    ttl: float = 3600.0,
    clients: Mapping[int, int] | None = None,
  ):
    self.grid = grid
    self._ttl = ttl
    self._clients = clients
    self.bytes_up = self.bytes_down = 0

  def addresses(self) -> Sequence[int]:
    """Returns the ids of the nodes that are online."""
    return list(self.grid.get_node_ids())

  def client_of(self, address: int) -> int | None:
    """Returns the client that a node's key is registered for."""
    return None if self._clients is None else self._clients.get(address, -1)

  def send(self, address: int, data: bytes) -> str:
    """Pushes a message; returns its id."""
    message = Message(
      payload.wrap(data), address, payload.MESSAGE_TYPE, ttl=self._ttl
    )
    self.bytes_down += payload.size(message)
    [token] = self.grid.push_messages([message])
    return token or ''

  def receive(self, tokens: Sequence[str]) -> list[transport.Reply]:
    """Pulls the replies that have arrived."""
    if not tokens:
      return []
    replies = []
    for message in self.grid.pull_messages(list(tokens)):
      # Not by the sender: replies of Flower itself come from another node.
      token = message.metadata.reply_to_message_id
      if message.has_error():
        error = message.error
        replies.append(
          transport.Reply(token, None, f'{error.reason} (code {error.code})')
        )
        continue
      self.bytes_up += payload.size(message)
      replies.append(transport.Reply(token, payload.unwrap(message)))
    return replies
