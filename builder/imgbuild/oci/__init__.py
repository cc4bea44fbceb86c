"""Reads, writes and unpacks images in the OCI format."""
