"""Published algorithms, each a composition of rules."""
