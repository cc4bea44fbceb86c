"""Stores files, layers and facts in a cache, and downloads files into it."""
