"""Known vulnerabilities: sources of advisories, what is accepted, severities, VEX."""
