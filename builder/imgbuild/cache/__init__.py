"""The cache: files, layers and facts, its size and location, and the downloads that fill it."""
