"""Fetches the inputs in a lock, builds layers from them, and writes the OCI layout."""
