"""A client of the OCI distribution protocol."""
