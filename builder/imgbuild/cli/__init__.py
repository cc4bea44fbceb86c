"""Implements the command line: a module for each command, and modules for options and output."""

from __future__ import annotations

import gc
import os
import sys
from contextlib import suppress

from imgbuild import __version__

INTERRUPTED = 130  # as of a process that SIGINT ended, in a shell


def main(*, ends: bool = True) -> None:
    """Run the command line, and exit with 0, the code of an error class, or a command's status.

    `--version` alone is handled before other modules are imported. With `ends`, the process ends
    immediately, without the final garbage collection.
    """
    _open_closed_streams()
    if sys.argv[1:] == ["--version"]:
        with suppress(OSError):  # such as a closed pipe, which `_main` handles
            os.write(sys.stdout.fileno(), f"imgbuild {__version__}\n".encode())
            return
    try:
        from imgbuild.cli import _main
        from imgbuild.system import collector
    except KeyboardInterrupt:  # `_main` handles an interrupt that comes later
        sys.stderr.write("error: interrupted\n")
        sys.exit(INTERRUPTED)

    if not ends:
        _main.main()
        return
    collector.process_ends()
    try:
        _main.main()
    finally:
        gc.freeze()  # or the interpreter searches all modules for cycles, which takes 40 ms


def _open_closed_streams() -> None:
    """Open standard streams that are closed, so that no other file gets their descriptors.

    A closed stdin is empty. Writing a result to a closed stdout is an error. Messages to a closed
    stderr are discarded.
    """
    streams = (("stdin", os.O_RDONLY), ("stdout", os.O_RDONLY), ("stderr", os.O_WRONLY))
    for number, (name, mode) in enumerate(streams):
        if getattr(sys, name) is not None:
            continue
        nothing = os.open(os.devnull, mode)
        if nothing != number:
            os.dup2(nothing, number)
            os.close(nothing)
        setattr(sys, name, os.fdopen(number, "w" if number else "r", encoding="utf-8"))
