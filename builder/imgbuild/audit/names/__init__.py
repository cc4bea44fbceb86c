"""Looks up names, classes, members and signatures in the facts of modules."""
