"""Newer versions than those of a target or a project, and a project moved to them."""
