"""Reads, writes and unpacks OCI images."""
