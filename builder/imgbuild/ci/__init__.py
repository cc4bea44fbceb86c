"""Plans the CI jobs of targets, writes them as scripts, and reports their results."""
