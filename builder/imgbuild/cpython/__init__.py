"""Reads and checks archives of standalone builds of CPython, and creates their layers."""
