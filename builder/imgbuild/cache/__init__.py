"""The cache: files, layers and facts, its size and location, and downloads into it."""
