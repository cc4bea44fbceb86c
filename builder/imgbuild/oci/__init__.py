"""The OCI image format: tar, gzip, layers, documents, layouts, unpacking."""
