"""Reads wheels and sdists: zip, METADATA, RECORD, tags, installation, conflicts."""
