"""Whether an image is what its lock says, and who signed it."""
