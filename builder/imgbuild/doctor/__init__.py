"""This host: which targets it can run, and whether it can run a given image."""
