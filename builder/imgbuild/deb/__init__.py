"""Debian: archive, packages, and a base's root file system, built without maintainer scripts."""
