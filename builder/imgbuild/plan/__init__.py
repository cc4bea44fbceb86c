"""Plans the layers and documents of an image from its lock, and computes their digests."""
