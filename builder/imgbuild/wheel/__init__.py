"""Wheels and sdists as values: zip, METADATA, RECORD, tags, how they install, conflicts."""
