"""Known vulnerabilities of a locked target: advisories, what is accepted, a VEX document."""
