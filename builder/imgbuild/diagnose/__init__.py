"""Reads logs of failed runs, and finds the first failure, its cause and its fix."""
