"""The packages that are installed together: wheels, their facts, their libraries."""
