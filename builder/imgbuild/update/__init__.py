"""Newer versions: what there is, tried as rows of a matrix, and a project moved to them."""
