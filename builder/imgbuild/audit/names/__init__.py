"""Looks up names, classes, members and signatures in the facts about modules."""
