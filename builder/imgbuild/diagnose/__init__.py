"""Logs of failed runs: the first failure in a log, its cause and its cure."""
