"""The packages that are installed together: wheels, environments, pins, kept facts."""
