"""Wraps the operating system: console, processes, files, locks, threads, signals, git, quoting."""
