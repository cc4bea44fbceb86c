"""Reads Python source into facts, without running it."""
