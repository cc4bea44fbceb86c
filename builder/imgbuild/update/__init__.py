"""Newer versions of a matrix's packages: found, tried as rows, written or refused with reasons."""
