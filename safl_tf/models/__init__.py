"""Keras models of the paper, and the folded layer that makes them fast."""
