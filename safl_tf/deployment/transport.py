"""The contract of a transport: what carries messages to clients and back.

`safl_tf.deployment.flower` has the one in use; a transport knows addresses and
bytes, and nothing of training.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class LostError(Exception):
  """The transport has started anew: addresses and requests are gone."""


class Reply(NamedTuple):
  """A reply to a request.

  Attributes:
    token: of the request.
    data: the reply; None if there is none.
    error: why there is none.
  """

  token: str
  data: bytes | None
  error: str = ''


class Transport(Protocol):
  """Carries requests to clients. Any method may raise `LostError`.

  Attributes:
    bytes_up: of all replies so far, as they were on the wire.
    bytes_down: of all requests so far.
  """

  @property
  def bytes_up(self) -> int:
    """See the class."""

  @property
  def bytes_down(self) -> int:
    """See the class."""

  def addresses(self) -> Sequence[int]:
    """Returns the addresses of the clients that are connected."""

  def client_of(self, address: int) -> int | None:
    """Returns the client whose key an address has proved to have.

    None if there are no keys.
    """

  def send(self, address: int, data: bytes) -> str:
    """Sends a request; returns its token."""

  def receive(self, tokens: Sequence[str]) -> list[Reply]:
    """Returns the replies to these requests that have arrived."""
