"""The plan as text for people and other builders: Dockerfiles, bake files, definition files."""
