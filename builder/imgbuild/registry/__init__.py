"""A client of registries (OCI distribution): manifests, blobs, uploads, credentials, mirrors."""
