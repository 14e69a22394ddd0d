"""Programs: flags in, objects made, one call."""
