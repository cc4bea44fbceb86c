"""Finds the pinned uv of this environment, and runs it without uv's environment variables."""

from __future__ import annotations

import functools

from imgbuild.errors import ToolMissing
from imgbuild.system import process, programs


@functools.cache
def uv_path() -> str:
    """Return the path of uv in this Python's environment.

    Raises ToolMissing if uv is not installed.
    """
    try:
        from uv import find_uv_bin
    except ImportError as error:
        message = "uv is not installed in the environment of imgbuild"
        raise ToolMissing(
            message, hint="reinstall imgbuild, which installs uv as a dependency"
        ) from error
    return str(find_uv_bin())


def uv_command() -> list[str]:
    """Return the start of a command that runs uv without uv's environment variables.

    The variables could add indexes and files, or change the resolution strategy.
    """
    env = programs.program_environment("uv")
    variables = [f"{name}={env[name]}" for name in ("HOME", "PATH", "TMPDIR") if name in env]
    # A page may require a build from an sdist; failures of the local index are permanent.
    timeouts = ["UV_HTTP_TIMEOUT=7200", "UV_HTTP_RETRIES=0"]
    return [process.find_program("env", remedy="install coreutils"), "-i", *variables, *timeouts]
