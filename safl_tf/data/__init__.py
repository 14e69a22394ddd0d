"""Where examples come from, and which client holds which of them."""
