"""Studies of one paper; the library never imports them."""
