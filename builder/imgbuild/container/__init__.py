"""Runs containers with docker, podman, buildx, Apptainer or a sandbox."""
