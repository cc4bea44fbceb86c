"""A client of registries (OCI distribution): manifests, blobs, uploads, logins, tokens, mirrors."""
