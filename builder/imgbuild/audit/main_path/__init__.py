"""Determines which code packages run in their intended use, by evaluating the source."""
