"""Finds the installer that a command line calls."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

InstallerKind = Literal["pip", "apt", "conda", "setup", "uninstall", "sync"]

# Options of pip and uv whose next word is their value.
OPTIONS_WITH_VALUE = frozenset([
    "-t", "--target", "--prefix", "--root", "--src", "--platform", "--python-version",
    "--implementation", "--abi", "--upgrade-strategy", "--no-binary", "--only-binary", "-C",
    "--config-settings", "--config-setting", "--global-option", "--install-option",
    "--progress-bar", "--root-user-action", "--report", "--use-feature", "--trusted-host",
    "--cache-dir", "--retries", "--resume-retries", "--timeout", "--default-timeout",
    "--proxy", "--log", "-p", "--python", "--index-strategy", "--prerelease", "--resolution",
    "--link-mode", "--build-constraint", "-b", "--python-platform", "--no-binary-package",
    "--no-build-package", "--no-build-isolation-package", "--reinstall-package",
    "--upgrade-package", "-P", "--keyring-provider", "--fork-strategy", "--directory",
    "--project", "--package", "--optional", "--tag", "--branch", "--rev",
    "--allow-insecure-host", "--cert", "--client-cert", "--exists-action",
    "--uploaded-prior-to", "--exclude-newer-package",
])  # fmt: skip
INDEX = frozenset(
    ["-i", "--index-url", "--extra-index-url", "--index", "--default-index", "-f", "--find-links"]
)
FILE = frozenset([
    "-r", "--requirement", "--requirements", "-c", "--constraint", "--constraints",
    "--override", "--overrides",
])  # fmt: skip
CHOICES = frozenset(["--exclude-newer", "--extra", "--group", "--all-extras", "--all-groups"])
READ_OPTIONS = INDEX | FILE | frozenset({"-e", "--editable", "--torch-backend"})
PIP = re.compile(r"(?:.*/)?pip[\d.]*")
PYTHON = re.compile(r"(?:.*/)?python[\d.]*")
CONDA = re.compile(r"(?:.*/)?(?:conda|mamba|micromamba)")


def find_installer(words: Sequence[str]) -> tuple[InstallerKind, list[str]] | None:
    """Return the installer that a command runs and its arguments, or None for other commands."""
    name, rest = words[0], list(words[1:])
    if PYTHON.fullmatch(name):
        return _python(rest)
    if PIP.fullmatch(name):
        return _pip_installer(rest)
    if name.rpartition("/")[2] == "uv":
        return _uv_installer(rest)
    if name in ("apt-get", "apt", "aptitude") and "install" in rest:
        rest.remove("install")
        return "apt", rest
    if CONDA.fullmatch(name) and rest[:1] in (["install"], ["create"]):
        return "conda", rest[1:]
    if CONDA.fullmatch(name) and rest[:1] == ["env"] and rest[1:2] in (["create"], ["update"]):
        return "conda", rest[2:]
    return None


def _python(rest: list[str]) -> tuple[InstallerKind, list[str]] | None:
    while rest and rest[0].startswith("-") and rest[0] != "-m":
        rest.pop(0)
    if rest[:2] == ["-m", "pip"]:
        return _pip_installer(rest[2:])
    if rest[:1] == ["setup.py"] and {"install", "develop"} & set(rest):
        return "setup", rest[1:]
    return None


def _uv_installer(rest: list[str]) -> tuple[InstallerKind, list[str]] | None:
    while rest and rest[0].startswith("-"):
        rest.pop(0)
    if rest[:1] == ["add"]:
        return "pip", rest[1:]
    if rest[:1] in (["sync"], ["run"]):
        return "sync", rest[1:]
    return _pip_installer(rest[1:]) if rest[:1] == ["pip"] else None


def _pip_installer(rest: list[str]) -> tuple[InstallerKind, list[str]] | None:
    verb = next((word for word in rest if not word.startswith("-")), "")
    at = rest.index(verb) if verb else 0
    if verb == "install":
        return "pip", [*rest[:at], *rest[at + 1 :]]
    if verb == "sync":  # of uv: files of a complete environment
        words = [*rest[:at], *rest[at + 1 :]]
        return "pip", [
            part
            for word in words
            for part in (("-r", word) if not word.startswith("-") else (word,))
        ]
    return ("uninstall", rest) if verb == "uninstall" else None
