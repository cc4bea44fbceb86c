"""Audit findings become constraints, and the target is solved again."""
