"""Federated training on real clients, with the bits of the simulation."""
