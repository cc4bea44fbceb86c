"""Derives constraints from audit findings, and resolves the target again."""
