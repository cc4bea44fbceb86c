"""Contains the checks, which take facts and return findings with messages and severities."""
