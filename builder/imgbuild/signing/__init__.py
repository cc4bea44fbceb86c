"""Signatures as cosign makes and reads them: keys, statements, and where a registry keeps them."""
