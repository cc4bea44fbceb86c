"""Reads package indexes, and serves a local index to uv."""
