"""Fetches the inputs of a lock, builds layers from them and writes the OCI layout."""
