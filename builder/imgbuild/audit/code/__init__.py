"""Compares a user's code, scripts and settings with a package set without running them."""
