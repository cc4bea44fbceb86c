"""The terminal, processes, the file system and threads."""
