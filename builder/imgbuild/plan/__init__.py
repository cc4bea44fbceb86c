"""From a lock to the layers and documents of its image, and their digests."""
