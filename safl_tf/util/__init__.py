"""Validation, errors, atomic files and hardware; no TensorFlow at import."""
