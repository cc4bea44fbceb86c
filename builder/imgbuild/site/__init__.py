"""Writes the catalogue as static pages."""
