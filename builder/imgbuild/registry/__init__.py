"""Implements a client for container registries (OCI distribution specification)."""
