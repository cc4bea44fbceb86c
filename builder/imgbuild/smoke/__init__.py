"""Runs the smoke tests in an image and stores the records of their runs."""
