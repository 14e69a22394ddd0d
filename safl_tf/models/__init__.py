"""The Keras models of the paper, and faster implementations of models."""
