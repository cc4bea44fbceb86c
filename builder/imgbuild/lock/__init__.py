"""The content of a lock; reads, writes and compares locks."""
