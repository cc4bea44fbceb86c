"""Renders locks in the formats of other tools, such as Dockerfile, pylock and scripts."""
