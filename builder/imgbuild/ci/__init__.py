"""The jobs of a CI: choose, run, report."""
