"""The cache of files and layers, and the downloads that fill it."""
