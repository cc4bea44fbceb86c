"""Checks a package set by reading its files, without a GPU."""
