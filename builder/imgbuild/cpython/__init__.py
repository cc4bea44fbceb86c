"""Standalone builds of CPython: their archives, checked, and the members of their layers."""
