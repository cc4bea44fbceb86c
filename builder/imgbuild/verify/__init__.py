"""Verifies that images match their locks, and who signed them."""
