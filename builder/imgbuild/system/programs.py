"""Finds programs on PATH, and computes the environment variables and git settings to run them.

The current folder is often an untrusted checkout. Programs in this folder, modules that Python
would import from it, and commands in the configuration of its git repository must not run
implicitly. `system.process` uses this module for every process that it starts.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

SYSTEM_PATH = "/usr/sbin:/sbin:/usr/local/sbin"
# Lists of folders in the environment in which an empty entry is the current folder, with the
# separators of their entries: the dynamic linker also splits at semicolons.
FOLDER_LISTS = {"PATH": ":", "PYTHONPATH": ":", "LD_LIBRARY_PATH": "[:;]"}
# Programs that read the git repository of their current folder. buildx starts git.
REPOSITORY_PROGRAMS = ("git", "docker", "docker-buildx", "buildx")
# Settings that prevent these programs from running commands of a repository's configuration and
# from using a bare repository among the files of a checkout. No transport: a partial clone would
# fetch missing objects by a configured command. Source: git-config(1), git(1) of 2.39.
GIT_SETTINGS = {
    "core.fsmonitor": "false",
    "core.hooksPath": os.devnull,
    "log.showSignature": "false",
    "safe.bareRepository": "explicit",
}
GIT_VARIABLES = {"GIT_ALLOW_PROTOCOL": "", "GIT_OPTIONAL_LOCKS": "0", "BUILDX_GIT_INFO": "false"}


def find_on_path(program: str, *, path: str | None = None) -> str | None:
    """Return the path of the executable `program`, or None if it is not installed.

    Works like shutil.which, but searches only absolute folders of PATH or `path`. A `program` that
    contains a slash is a path.
    """
    if os.sep in program:
        return shutil.which(program)
    folders = os.environ.get("PATH", os.defpath) if path is None else path
    return shutil.which(program, path=_absolute_folders(folders, FOLDER_LISTS["PATH"]))


def find_program(program: str) -> str | None:
    """Find a program on PATH or in the folders for system programs."""
    return find_on_path(program) or find_on_path(program, path=SYSTEM_PATH)


def python_command() -> list[str]:
    """Return the start of a command line for this Python.

    Nothing is imported from the current folder.
    """
    return [sys.executable, "-P"]


def program_environment(program: str, added: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return this process's environment and `added`, changed to run `program` safely.

    Relative and empty entries are omitted from lists of folders. Programs that read git
    repositories do not run commands in a repository's configuration, and use a transport only if
    `added` allows it.
    """
    env = {**os.environ, **(added or {})}
    for name, separator in FOLDER_LISTS.items():
        if name in env:
            env[name] = _absolute_folders(env[name], separator)
    if "PATH" in env and not env["PATH"]:
        env["PATH"] = os.defpath
    if Path(program).name in REPOSITORY_PROGRAMS:
        env |= GIT_VARIABLES | _git_settings(env)
        env |= {name: text for name, text in (added or {}).items() if name in GIT_VARIABLES}
    return env


def _absolute_folders(folders: str, separator: str) -> str:
    return os.pathsep.join(
        folder for folder in re.split(separator, folders) if Path(folder).is_absolute()
    )


def _git_settings(env: Mapping[str, str]) -> dict[str, str]:
    """Return `GIT_SETTINGS` as environment variables, which override the git settings in `env`."""
    count = env.get("GIT_CONFIG_COUNT", "")
    first = int(count) if count.isdecimal() else 0
    settings = {"GIT_CONFIG_COUNT": str(first + len(GIT_SETTINGS))}
    for number, (key, value) in enumerate(GIT_SETTINGS.items(), start=first):
        settings |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    return settings
