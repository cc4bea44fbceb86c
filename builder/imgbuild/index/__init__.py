"""Package indexes: their pages, the files that fit, a local index server for uv."""
