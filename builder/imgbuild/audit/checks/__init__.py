"""The checks: each takes facts and returns findings."""
