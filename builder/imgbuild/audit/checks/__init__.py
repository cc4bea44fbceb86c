"""The checks: each takes facts and returns findings, with their messages and severities."""
