"""Finds newer versions, tries them as rows of a matrix, and moves projects to new rows."""
