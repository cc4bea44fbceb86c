"""Whether an image matches its lock, and who signed it."""
