"""imgbuild builds reproducible container images from one reviewed file of versions."""

__version__ = "0.1.0"
