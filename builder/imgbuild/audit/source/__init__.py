"""Reads facts from Python source without running it: imports, calls, guards, versions."""
