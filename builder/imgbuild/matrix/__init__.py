"""Reads `matrix.yaml` and the learned constraints as values."""
