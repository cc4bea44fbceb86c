"""Helpers that several tests share: small projects, servers, engines. No file here is a test."""
