"""Newer versions: what there is, tried as rows, and a project moved to them."""
