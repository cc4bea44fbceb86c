"""A user's code, scripts and configurations against a package set. Nothing of them is run."""
