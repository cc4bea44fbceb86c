"""The pinned uv of this environment: its path, and the start of a command without its variables."""

from __future__ import annotations

import functools

from imgbuild.errors import ToolMissing
from imgbuild.system import process, programs


@functools.cache
def binary() -> str:
    """The path of uv in this Python's environment; ToolMissing if it is not installed."""
    try:
        from uv import find_uv_bin
    except ImportError as error:
        message = "uv is not installed in the environment of imgbuild"
        raise ToolMissing(
            message, hint="install imgbuild again: uv is one of its dependencies"
        ) from error
    return str(find_uv_bin())


def clean() -> list[str]:
    """The words before a command of uv that keep its many variables from it.

    They would add indexes, files or strategies.
    """
    env = programs.environment("uv")
    variables = [f"{name}={env[name]}" for name in ("HOME", "PATH", "TMPDIR") if name in env]
    # A page may wait for a build from an sdist; what fails at the local index fails again.
    timeouts = ["UV_HTTP_TIMEOUT=7200", "UV_HTTP_RETRIES=0"]
    return [process.find("env", remedy="install coreutils"), "-i", *variables, *timeouts]
