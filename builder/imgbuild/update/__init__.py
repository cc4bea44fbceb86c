"""Newer versions: found, tried as rows of a matrix, and projects moved to them."""
