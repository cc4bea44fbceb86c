"""uv, the resolver: the pinned binary of this environment, called on requirement lines.

uv sees no files but the local index's (see `index.server`) and no configuration but the arguments.
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
from imgbuild.index.catalogue import Amend, Catalogue, nothing
from imgbuild.system import process, programs
from imgbuild.system.syntax import parse_requirement
from imgbuild.system.uv_program import binary, clean
from imgbuild.values import normalize

DEFAULT_INDEX = re.compile(r"^--(?:default-)?index(?:-url)? (\S+)$", re.MULTILINE)
ROOT = Path("/")
# uv 0.9's words for a requirement with an address in METADATA of a package of an index.
BY_ADDRESS = re.compile(r"Package `([^`]+)` was included as a URL dependency")
PIP_INDEX = re.compile(r"^([a-z:]+)\.index-url='(.*)'$", re.MULTILINE)


class ChosenPackage(msgspec.Struct, frozen=True, kw_only=True):
    """A package that uv chose, and what required it."""

    package: str
    version: str
    via: tuple[str, ...] = ()


class Unsolvable(Exception):
    """uv found no solution; its own explanation is the argument."""


@functools.cache
def default_index() -> str:
    """The index that uv is set up for on this machine: UV_DEFAULT_INDEX, uv.toml, or its own.

    uv.toml is that of the user or of the machine, not one of the current folder or above it.
    Where uv is set up for none, pip's counts: uv does not read pip's configuration, and a
    machine's mirror is often named only there. The address may hold a password: never print it.
    """
    query = [
        *(binary(), "pip", "compile", "--offline", "--no-header", "--emit-index-url"),
        *("--python", sys.executable, "--no-python-downloads"),
    ]
    configured = _named_index([*query, "-"])
    built_in = _named_index([*clean(), *query, "--no-config", "-"])
    if configured == built_in:
        return pip_index() or configured
    return configured


def _named_index(command: Sequence[str]) -> str:
    # Not in the current folder: uv would read uv.toml and pyproject.toml there and above.
    done = process.run(command, stdin="", cwd=ROOT, env=_settings_file("UV_CONFIG_FILE"))
    match = DEFAULT_INDEX.search(done.stdout)
    if match is None:
        message = "uv names no default index"
        raise InputError(
            message, hint="set UV_DEFAULT_INDEX to the simple index to resolve against"
        )
    return match.group(1)


def pip_index() -> str | None:
    """The index that pip is set up for: PIP_INDEX_URL or pip.conf; None if there is none."""
    command = [*programs.python(), "-m", "pip", "config", "list"]
    env = _settings_file("PIP_CONFIG_FILE")
    listed = process.run(command, check=False, cwd=ROOT, env=env).stdout
    settings = dict(PIP_INDEX.findall(listed))
    return settings.get(":env:") or settings.get("install") or settings.get("global")


def _settings_file(variable: str) -> dict[str, str]:
    """The file that the user names in `variable`, for a command that runs in another folder."""
    path = os.environ.get(variable)
    return {variable: str(Path(path).absolute())} if path else {}


class ResolverBounds(msgspec.Struct, frozen=True, kw_only=True):
    """What limits uv's choice in addition to requirements; all are PEP 508 lines.

    `overrides` hold in place of METADATA of their packages. `preferences` are exact
    versions that are taken as long as they are possible.
    """

    constraints: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    preferences: tuple[str, ...] = ()


class AddressRequired(Exception):
    """METADATA requires `package` with an address, which no requirement of the user has."""

    def __init__(self, package: str) -> None:
        super().__init__(package)
        self.package = package


def ask(
    catalogue: Catalogue,
    requirements: Sequence[str],
    bounds: ResolverBounds,
    store: Store,
    amend: Amend = nothing,
) -> tuple[ChosenPackage, ...]:
    """Uv's choice from `catalogue`, its METADATA amended; Unsolvable if there is no solution.

    If uv failed because of an error of the local index, that error is raised.
    """
    from imgbuild.index import server  # `http.server` is slow to import

    tags = catalogue.rules.tags
    try:
        with server.serve(catalogue, amend) as index, store.scratch() as folder:
            return compile_requirements(
                requirements,
                bounds,
                index=index,
                python=tags.python,
                platform=tags.uv_platform,
                folder=folder,
            )
    except ImgbuildError:
        if catalogue.failures:  # uv saw only the status of the answer: this is its cause
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
    """Resolve `requirements` under `bounds`, sorted by package; Unsolvable if impossible.

    `python` is a version ("3.11.2"), `platform` one of uv's names, `folder` takes temporary files.
    """
    constraints = _written(folder / "constraints.txt", bounds.constraints)
    overrides = _written(folder / "overrides.txt", bounds.overrides)
    # Uv prefers the versions of the file that it is to write.
    output = _written(folder / "requirements.txt", bounds.preferences)
    command = [
        *(*clean(), binary(), "pip", "compile", "-", "--output-file", output),
        *("--constraints", constraints, "--overrides", overrides, "--resolution", "highest"),
        *("--no-config", "--no-cache", "--no-progress", "--color", "never"),
        *("--python", sys.executable, "--no-python-downloads"),
        *("--default-index", index, "--keyring-provider", "disabled", "--no-sources"),
        *("--python-version", python, "--python-platform", platform, "--no-build"),
        *("--no-header", "--annotation-style", "line", "--prerelease", "if-necessary"),
    ]
    result = process.run(command, stdin="\n".join(requirements) + "\n", check=False, cwd=folder)
    if result.status == 1 and "No solution found" in result.stderr:
        raise Unsolvable(result.stderr.strip())
    address = BY_ADDRESS.search(result.stderr)
    if result.status != 0 and address is not None:
        raise AddressRequired(normalize(address[1]))
    if result.status != 0:
        raise process.failure(command, result)
    return parse(result.stdout)


def _written(path: Path, lines: Sequence[str]) -> str:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


def parse(text: str) -> tuple[ChosenPackage, ...]:
    """Uv's requirements (`name==version  # via a, b`) as values, sorted by package."""
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
                package=normalize(requirement.name),
                version=specifier.version,
                via=tuple(part for part in via if part and not part.startswith("-")),
            )
        )
    return tuple(sorted(chosen, key=lambda item: item.package))
