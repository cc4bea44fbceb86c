"""Implements the OCI image format: tar, gzip, layers, documents, layouts, unpacking."""
