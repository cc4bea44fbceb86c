"""Finds known vulnerabilities of images, and writes VEX documents."""
