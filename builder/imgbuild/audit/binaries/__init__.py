"""Reads shared objects and GPU code into facts."""
