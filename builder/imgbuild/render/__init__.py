"""A lock as text for other tools: Dockerfile, bake file, pylock, script; templates."""
