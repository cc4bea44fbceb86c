"""Creates and reads signatures in the formats of cosign."""
