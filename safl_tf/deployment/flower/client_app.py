"""The ClientApp: hands requests to a client, and its replies to Flower."""

from collections.abc import Callable

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from safl_tf.deployment.flower import payload


def create(handle: Callable[[bytes], bytes]) -> ClientApp:
  """Returns the app of a client; `handle` is `client.Client.handle`."""
  app = ClientApp()

  @app.query()
  def query(message: Message, context: Context) -> Message:
    del context
    reply = handle(payload.unwrap(message))
    return Message(payload.wrap(reply), reply_to=message)

  return app
