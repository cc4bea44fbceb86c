"""Whether an image is what its lock says and who says so: check by check."""
