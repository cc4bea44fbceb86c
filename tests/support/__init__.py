"""Contains helpers that several tests share: small projects, servers and engines."""
