"""Images in a registry: push, pull, tag, list, deletion of old images, mirror."""
