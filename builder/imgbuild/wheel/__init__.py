"""Reads wheels and sdists, computes the files that wheels install, and finds file conflicts."""
