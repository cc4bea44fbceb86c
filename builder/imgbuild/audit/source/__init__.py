"""Reads Python source into facts without running it: imports, calls, guards, versions."""
