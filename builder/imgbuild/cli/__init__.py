"""The command line: one file per verb; options, help, tables, `--json`, errors, exit codes."""

from __future__ import annotations

import sys
from contextlib import suppress

from imgbuild import __version__


def main() -> None:
    """Run the command line; the exit status is 0, that of the error's class, or a command's own.

    `--version` alone is handled here, before anything else is imported.
    """
    if sys.argv[1:] == ["--version"]:
        with suppress(OSError):  # such as a closed pipe, which `_main` handles
            sys.stdout.write(f"imgbuild {__version__}\n")
            sys.stdout.flush()
            return
    from imgbuild.cli import _main

    _main.main()
