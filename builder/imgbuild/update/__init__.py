"""Finds newer versions, tries the versions as rows of a matrix, and moves projects to new rows."""
