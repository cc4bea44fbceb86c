"""Reads and checks archives of standalone builds of CPython, and makes their layers."""
