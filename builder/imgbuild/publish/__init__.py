"""Pushes, pulls, tags, lists and deletes images in a registry, and mirrors inputs."""
