"""Reads requirements, metadata, lock files and Dockerfiles of a user's project."""
