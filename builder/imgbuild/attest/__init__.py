"""Creates and reads attachments of images: SBOMs, provenance, signatures and locks."""
