"""The sentence with the likely cause at the end of a command that failed."""

from __future__ import annotations

from imgbuild.system.console import console


def report_cause(log: str) -> None:
    """Print the likely cause of a failure to stderr, if `log` has one."""
    if log.strip():
        from imgbuild.diagnose import diagnosis  # reads all rules, which only a failure needs

        if sentence := diagnosis.sentence(log):
            console.info(sentence)
