"""Implements a client for registries (OCI distribution)."""
