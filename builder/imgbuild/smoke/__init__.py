"""Runs smoke tests in images, and stores test records."""
