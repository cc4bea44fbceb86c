"""Slurm: job scripts, job arrays, Slurm's commands."""
