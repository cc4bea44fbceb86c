"""The OCI image format: tar, layers, documents, layouts."""
