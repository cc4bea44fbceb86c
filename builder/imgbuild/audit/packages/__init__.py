"""The packages that are installed together: wheels, environments, pins, cached facts."""
