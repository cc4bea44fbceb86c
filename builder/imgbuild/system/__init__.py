"""The terminal, processes, the file system, threads, and texts in the syntax of other languages."""
