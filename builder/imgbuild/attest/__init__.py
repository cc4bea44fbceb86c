"""Attachments of an image: SBOMs, provenance, signatures, its lock."""
