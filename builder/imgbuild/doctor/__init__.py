"""Checks which targets this host can run, and whether it can run a given image."""
