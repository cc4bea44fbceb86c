"""Checks that images match their locks, and checks their signatures."""
