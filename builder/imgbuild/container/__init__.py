"""Container engines and sandboxes: docker, podman, BuildKit, Apptainer, namespaces."""
