"""Fetches the inputs of a lock, makes layers of them, writes the layout."""
