"""What is attached to an image: SBOMs, provenance, signatures, its lock."""
