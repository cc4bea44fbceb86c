"""Sends HTTP requests, with retries, redirects, proxies, certificates and credentials."""
