"""Determines which code runs in the intended use of packages, by evaluating their source."""
