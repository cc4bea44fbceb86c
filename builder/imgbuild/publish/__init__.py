"""Images in a registry: push, pull, tag, list, delete old ones; the mirror of inputs."""
