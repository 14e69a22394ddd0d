"""Helpers without TensorFlow: validation, errors, atomic files."""
