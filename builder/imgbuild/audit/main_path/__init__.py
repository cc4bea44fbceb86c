"""Determines which code runs when packages are used as intended, by evaluating their source."""
