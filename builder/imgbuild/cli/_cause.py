"""Prints the likely cause of a failure at the end of a failed command."""

from __future__ import annotations

from imgbuild.system.console import console


def report_cause(log: str) -> None:
    """Print the likely cause of a failure to stderr, if `log` contains a known failure."""
    if log.strip():
        from imgbuild.diagnose import diagnosis  # reads all rules, which only a failure needs

        if sentence := diagnosis.first_finding_sentence(log):
            console.info(sentence)
