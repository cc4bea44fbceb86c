"""Runs containers with Docker, podman, Apptainer or a sandbox, and builds images with buildx."""
