"""Signatures in cosign's formats: keys, bundles, keyless signing."""
