"""Fetches the inputs of a lock, builds layers from the inputs, and writes the OCI layout."""
