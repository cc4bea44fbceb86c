"""Debian: archive, packages, and a base's root file system, made without maintainer scripts."""
