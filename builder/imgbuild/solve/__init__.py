"""Resolves a target to wheels, sdists and Debian packages, with uv."""
