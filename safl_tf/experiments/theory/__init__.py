"""Tests of the paper's bounds on functions that meet its assumptions.

bounds   the bounds, their conditions, and exact errors
testbed  the clients' functions F_k, as data and a Keras model
trials   the settings, run by `FederatedProcess` in many trials at once
report   tables and figures
"""
