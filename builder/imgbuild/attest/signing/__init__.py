"""Signatures in cosign's formats."""
