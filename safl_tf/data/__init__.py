"""Where examples come from, and which device holds which of them."""
