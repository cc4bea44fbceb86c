"""Package indexes: pages, which files fit a target, METADATA, a local index server for uv."""
