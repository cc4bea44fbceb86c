"""Runs uv, the resolver, on requirement lines.

imgbuild pins the version of uv. uv can access only the local index (see `index.server`), and reads
no configuration files.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from imgbuild.cache.store import Store
from imgbuild.errors import ImgbuildError, InputError
from imgbuild.index.catalogue import AdditionsProvider, FileCatalogue, no_additions
from imgbuild.system import process, programs
from imgbuild.system.syntax import parse_requirement
from imgbuild.system.uv_program import uv_command, uv_path
from imgbuild.values import normalize_package

DEFAULT_INDEX = re.compile(r"^--(?:default-)?index(?:-url)? (\S+)$", re.MULTILINE)
ROOT = Path("/")
# Message of uv 0.9 for a requirement with a URL in METADATA of an index package.
ADDRESS_MESSAGE = re.compile(r"Package `([^`]+)` was included as a URL dependency")
PIP_INDEX = re.compile(r"^([a-z:]+)\.index-url='(.*)'$", re.MULTILINE)


class ChosenPackage(msgspec.Struct, frozen=True, kw_only=True):
    """A package that uv chose, and the packages that require it."""

    package: str
    version: str
    via: tuple[str, ...] = ()


class UnsolvableError(Exception):
    """Raised if uv finds no solution. The argument is uv's explanation."""


@functools.cache
def default_index() -> str:
    """Return uv's default index on this machine: UV_DEFAULT_INDEX, uv.toml, or uv's own default.

    uv.toml of the user and of the machine is read, but not that of the current folder and its
    parents. pip's configuration is the fallback, because it often contains mirrors. The URL can
    contain a password and must not be printed.
    """
    query = [
        *(uv_path(), "pip", "compile", "--offline", "--no-header", "--emit-index-url"),
        *("--python", sys.executable, "--no-python-downloads"),
    ]
    configured = _named_index([*query, "-"])
    built_in = _named_index([*uv_command(), *query, "--no-config", "-"])
    if configured == built_in:
        return pip_index() or configured
    return configured


def _named_index(command: Sequence[str]) -> str:
    # Not in the current folder, where uv would read uv.toml and pyproject.toml.
    done = process.run_command(command, stdin="", cwd=ROOT, env=_settings_file("UV_CONFIG_FILE"))
    match = DEFAULT_INDEX.search(done.stdout)
    if match is None:
        message = "uv has no default index"
        raise InputError(message, hint="set UV_DEFAULT_INDEX to the URL of a package index")
    return match.group(1)


def pip_index() -> str | None:
    """Return the index from PIP_INDEX_URL or pip.conf, or None."""
    command = [*programs.python_command(), "-m", "pip", "config", "list"]
    env = _settings_file("PIP_CONFIG_FILE")
    listed = process.run_command(command, check=False, cwd=ROOT, env=env).stdout
    settings = dict(PIP_INDEX.findall(listed))
    return settings.get(":env:") or settings.get("install") or settings.get("global")


def _settings_file(variable: str) -> dict[str, str]:
    """Return `variable` with an absolute path as its value, or {} if it is not set."""
    path = os.environ.get(variable)
    return {variable: str(Path(path).absolute())} if path else {}


class ResolverBounds(msgspec.Struct, frozen=True, kw_only=True):
    """Limits on uv's choice in addition to requirements, as PEP 508 lines.

    `overrides` replace the requirements on their packages in METADATA. `preferences` are exact
    versions that are kept if possible.
    """

    constraints: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    preferences: tuple[str, ...] = ()


class AddressRequired(Exception):
    """Raised if METADATA requires `package` by a URL that no requirement of the user contains."""

    def __init__(self, package: str) -> None:
        super().__init__(package)
        self.package = package


def run_resolver(
    catalogue: FileCatalogue,
    requirements: Sequence[str],
    bounds: ResolverBounds,
    store: Store,
    amend: AdditionsProvider = no_additions,
) -> tuple[ChosenPackage, ...]:
    """Resolve `requirements` from `catalogue` with amended METADATA.

    Raises UnsolvableError if there is no solution. If an error of the local index made uv fail,
    raises that error instead.
    """
    from imgbuild.index import server  # `http.server` is slow to import

    tags = catalogue.rules.tags
    try:
        with server.serve_index(catalogue, amend) as index, store.scratch() as folder:
            return compile_requirements(
                requirements,
                bounds,
                index=index,
                python=tags.python,
                platform=tags.uv_platform,
                folder=folder,
            )
    except ImgbuildError:
        if catalogue.failures:  # uv received only the status of the response: this is its cause
            raise catalogue.failures[0] from None
        raise


def compile_requirements(
    requirements: Sequence[str],
    bounds: ResolverBounds,
    *,
    index: str,
    python: str,
    platform: str,
    folder: Path,
) -> tuple[ChosenPackage, ...]:
    """Resolve `requirements` within `bounds`, and return the packages sorted by name.

    `python` is a version ("3.11.2"), `platform` a platform name of uv, and `folder` is for
    temporary files. Raises UnsolvableError if there is no solution.
    """
    constraints = _write_lines(folder / "constraints.txt", bounds.constraints)
    overrides = _write_lines(folder / "overrides.txt", bounds.overrides)
    # Uv prefers the versions in its existing output file.
    output = _write_lines(folder / "requirements.txt", bounds.preferences)
    command = [
        *(*uv_command(), uv_path(), "pip", "compile", "-", "--output-file", output),
        *("--constraints", constraints, "--overrides", overrides, "--resolution", "highest"),
        *("--no-config", "--no-cache", "--no-progress", "--color", "never"),
        *("--python", sys.executable, "--no-python-downloads"),
        *("--default-index", index, "--keyring-provider", "disabled", "--no-sources"),
        *("--python-version", python, "--python-platform", platform, "--no-build"),
        *("--no-header", "--annotation-style", "line", "--prerelease", "if-necessary"),
    ]
    result = process.run_command(
        command, stdin="\n".join(requirements) + "\n", check=False, cwd=folder
    )
    if result.status == 1 and "No solution found" in result.stderr:
        raise UnsolvableError(result.stderr.strip())
    address = ADDRESS_MESSAGE.search(result.stderr)
    if result.status != 0 and address is not None:
        raise AddressRequired(normalize_package(address[1]))
    if result.status != 0:
        raise process.command_error(command, result)
    return parse_output(result.stdout)


def _write_lines(path: Path, lines: Sequence[str]) -> str:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


def parse_output(text: str) -> tuple[ChosenPackage, ...]:
    """Parse uv's output (`name==version  # via a, b`) to packages sorted by name."""
    chosen = []
    for line in text.splitlines():
        body, _, note = line.partition("#")
        if not body.strip() or body.startswith("-"):
            continue
        requirement = parse_requirement(body.strip())
        (specifier,) = requirement.specifier
        via = [part.strip() for part in note.strip().removeprefix("via").split(",")]
        chosen.append(
            ChosenPackage(
                package=normalize_package(requirement.name),
                version=specifier.version,
                via=tuple(part for part in via if part and not part.startswith("-")),
            )
        )
    return tuple(sorted(chosen, key=lambda item: item.package))
