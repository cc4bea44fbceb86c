"""Images in a registry: push, pull, tag, list, garbage collection, mirror."""
