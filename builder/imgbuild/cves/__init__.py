"""Known vulnerabilities: sources of advisories, accepted ones, severities, VEX."""
