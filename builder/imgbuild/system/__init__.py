"""Provides the console, processes, files, locks, threads, signals, git and quoting of texts."""
