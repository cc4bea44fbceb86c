"""What is attached to an image: SBOM, provenance, signatures, its lock."""
