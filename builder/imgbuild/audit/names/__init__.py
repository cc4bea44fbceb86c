"""Looks up names, classes and signatures in the facts of modules."""
