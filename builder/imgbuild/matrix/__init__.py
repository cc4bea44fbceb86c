"""Reads and validates `matrix.yaml` and the learned constraints."""
