"""Runs the smoke tests in an image and keeps the records of their runs."""
