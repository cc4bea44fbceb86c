"""Reads Debian's archive and packages, and builds root file systems without running scripts."""
