"""Job scripts and job arrays for Slurm, and its commands."""
