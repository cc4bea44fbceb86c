"""Defines the content of a lock, and reads, writes and compares locks."""
