"""The version of safl_tf, in one place."""

__version__ = '0.1.0'
