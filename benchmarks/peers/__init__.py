"""Other frameworks on the same workload, each in its own environment."""
