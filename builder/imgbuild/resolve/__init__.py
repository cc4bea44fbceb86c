"""Finds the package set for a request (`resolve`), and begins new repositories (`init`)."""
