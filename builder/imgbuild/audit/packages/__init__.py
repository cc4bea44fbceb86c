"""Reads package sets from wheels, environments and pins, and caches their facts."""
