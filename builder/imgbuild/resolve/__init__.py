"""Finds the package set for a request (`resolve`), and creates new projects (`init`)."""
