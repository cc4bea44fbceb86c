"""HTTP: retries, timeouts, redirects, proxies, certificates, User-Agent, logins."""
