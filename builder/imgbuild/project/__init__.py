"""The declarations of a user's project: requirements files, metadata, lock files, a Dockerfile."""
