"""Runs images on Slurm, with job scripts and job arrays."""
