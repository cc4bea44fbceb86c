"""Package indexes: pages, files compatible with a target, METADATA, a local index for uv."""
