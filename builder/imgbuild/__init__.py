"""imgbuild: one reviewed file of versions in, container images that work together out."""

__version__ = "0.1.0"
