"""HTTP requests, with retries and credentials."""
