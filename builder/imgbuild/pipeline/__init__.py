"""Runs the steps of lock, build, audit and rebuild. Start reading the code here."""
