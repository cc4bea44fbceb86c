"""Reads the declarations of a user's project: requirements, metadata, lock files, a Dockerfile."""
