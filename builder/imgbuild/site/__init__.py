"""Writes the catalogue of targets as static web pages."""
