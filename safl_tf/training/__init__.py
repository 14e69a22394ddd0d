"""Training runs: loop, evaluation, run directory, checkpoints, export."""
