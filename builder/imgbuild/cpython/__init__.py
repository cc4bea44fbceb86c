"""Standalone builds of CPython: their archives, checked, and what a layer has of them."""
