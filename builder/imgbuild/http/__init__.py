"""HTTP: retries, timeouts, redirects, proxies, certificates, User-Agent, credentials."""
