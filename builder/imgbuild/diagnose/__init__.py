"""Finds the first failure in the log of a run that failed, with its cause and its cure."""
