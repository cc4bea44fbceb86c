"""The jobs of a CI: choose, write as a script, report."""
