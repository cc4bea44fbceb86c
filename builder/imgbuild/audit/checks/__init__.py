"""Checks package sets: each check takes facts and returns findings with severities."""
