"""Containers: docker, podman, buildx, Apptainer, the sandbox; mounts, GPUs, variables, limits."""
