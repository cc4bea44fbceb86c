"""Container engines and sandboxes: docker, podman, buildx, Apptainer, namespaces."""
