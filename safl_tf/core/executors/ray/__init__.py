"""Runs a round's clients on the workers of a Ray cluster, with equal bits."""
