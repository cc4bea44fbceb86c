"""Finds known vulnerabilities in images, and writes VEX documents."""
