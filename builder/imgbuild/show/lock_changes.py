"""Compares versions, base and settings of two committed locks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, TypeGuard

import msgspec
from msgspec import Meta

from imgbuild.matrix.fields import DEBIAN_PACKAGE, GPU_LABEL, Line, Package
from imgbuild.system import decoding
from imgbuild.system.amounts import join_first
from imgbuild.values import Arch

LONGEST_VALUE = 160  # characters of a line
VALUES = 6  # names in a line
ITEMS = {"variable": "env", "link": "links"}
# Settings whose old and new values are shown.
NAMED_SETTINGS = {
    "entrypoint": "entrypoint",
    "cmd": "command",
    "user": "user",
    "workdir": "working directory",
    "cache": "folder of the caches",
    "prefix": "folder of the Python environment",
}
# Settings whose values are too long for a page: what a first value, another one and none mean.
SENTENCES = {
    "user_packages": (
        "pip and uv install packages for a user, and keep the versions of the image",
        "the settings of pip and uv for packages of users changed",
        "settings of pip and uv for packages of users were removed",
    ),
    "readme": (
        "a README was added: /opt/imgbuild/README",
        "the text of /opt/imgbuild/README changed",
        "/opt/imgbuild/README was removed",
    ),
}
HARDENED_TEXT = (
    "hardened: no setuid and setgid files, caches that only the image's user can write to"
)
BASE = {"name": "base", "suite": "Debian", "python": "Python", "image": "base image"}
FACTS = {"cuda": "CUDA", "as_of": "cut-off date of packages", "flashinfer": "FlashInfer"}

Version = Annotated[str, Meta(pattern=r"^[0-9A-Za-z.!+:~-]*\Z", max_length=80)]
AnyPackage = Annotated[str, Meta(pattern=rf"^({DEBIAN_PACKAGE}|[a-z0-9-]+)\Z")]


class VersionChange(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A changed package. `old` is "" for an added package. `new` is "" for a removed package."""

    package: AnyPackage
    old: Version = ""
    new: Version = ""


class LockChanges(msgspec.Struct, frozen=True, kw_only=True):
    """The changes of Python packages, Debian packages, base and settings."""

    python: tuple[VersionChange, ...] = ()
    debian: tuple[VersionChange, ...] = ()
    settings: tuple[Line, ...] = ()


class _VersionedPackage(msgspec.Struct, frozen=True):
    package: AnyPackage
    version: Version


class _WheelFields(msgspec.Struct, frozen=True):
    package: Package
    version: Version


class _ResolutionFields(msgspec.Struct, frozen=True):
    wheels: tuple[_WheelFields, ...]
    built: tuple[_WheelFields, ...] = ()
    debs: tuple[_VersionedPackage, ...] = ()
    security: str | None = None

    @property
    def python(self) -> dict[str, str]:
        """Versions by package."""
        return {each.package: each.version for each in (*self.wheels, *self.built)}

    @property
    def debian(self) -> dict[str, str]:
        """Versions by Debian package."""
        return {each.package: each.version for each in self.debs}


class CommittedLock(msgspec.Struct, frozen=True):
    """The fields that all formats of lock.json contain. Other fields are compared as JSON."""

    arch: dict[Arch, _ResolutionFields]
    base: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    cuda: str = ""
    as_of: str = ""
    flashinfer: str = ""
    layers: Any = None
    drop: Any = None


def decode_lock(data: bytes | None) -> CommittedLock | None:
    """Decode a lock, or return None if it is missing or unreadable."""
    try:
        return decoding.decode_json(data, CommittedLock) if data is not None else None
    except msgspec.MsgspecError:
        return None


def lock_changes(before: CommittedLock, after: CommittedLock) -> LockChanges:
    """Compare two locks. Packages are compared on architectures that both locks have."""
    arches = [arch for arch in sorted(after.arch, reverse=True) if arch in before.arch]
    pairs = [(before.arch[arch], after.arch[arch]) for arch in arches]
    python = [each for old, new in pairs for each in _versions(old.python, new.python)]
    debian = [each for old, new in pairs for each in _versions(old.debian, new.debian)]
    return LockChanges(
        python=tuple(sorted(dict.fromkeys(python), key=_key)),
        debian=tuple(sorted(dict.fromkeys(debian), key=_key)),
        settings=tuple(map(_line, _settings(before, after))),
    )


def _versions(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[VersionChange]:
    for package in before.keys() | after.keys():
        old, new = before.get(package, ""), after.get(package, "")
        if old != new:
            yield VersionChange(package=package, old=old, new=new)


def _key(change: VersionChange) -> tuple[str, str, str]:
    return change.package, change.old, change.new


def _settings(before: CommittedLock, after: CommittedLock) -> Iterator[str]:
    for arch in sorted(before.arch.keys() ^ after.arch.keys(), reverse=True):
        yield f"{arch} {'added' if arch in after.arch else 'removed'}"
    yield from _base(before.base, after.base)
    for arch in after.arch:
        old, new = before.arch.get(arch), after.arch[arch]
        if old is not None and old.security != new.security:
            yield f"security updates of Debian: {old.security or 'none'} → {new.security or 'none'}"
            break
    for key, name in FACTS.items():
        old_text, new_text = getattr(before, key), getattr(after, key)
        if old_text != new_text:
            yield f"{name}: {old_text or 'none'} → {new_text or 'none'}"
    yield from _image_settings(before.settings, after.settings)
    if before.layers != after.layers:
        yield from _layer_rules(before.layers, after.layers)
    yield from _dropped_files(before.drop, after.drop)


def _layer_rules(before: object, after: object) -> Iterator[str]:
    """Yield the changed rules for dividing packages into layers."""
    old, new = _texts(before), _texts(after)
    names = [name for name in dict.fromkeys((*old, *new)) if old.get(name) != new.get(name)]
    rules = f" (rules: {join_first(names, VALUES)})" if names else ""
    yield f"packages are divided into layers differently{rules}"


def _dropped_files(before: object, after: object) -> Iterator[str]:
    """Yield the files of packages that were omitted or included."""
    old, new = _drops(before), _drops(after)
    for words, files in (("omitted", new - old), ("no longer omitted", old - new)):
        if files:
            yield f"{words}: {join_first(sorted(files), VALUES)}"


def _drops(value: object) -> set[str]:
    """Patterns of paths with their packages, such as "bin/fastapi of fastapi-cli"."""
    entries = [entry for entry in value if isinstance(entry, dict)] if _is_list(value) else []
    return {
        f"{path} of {entry.get('package')}"
        for entry in entries
        for path in (entry["paths"] if _is_list(entry.get("paths")) else ())
    }


def _is_list(value: object) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def _base(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    for key, noun in BASE.items():
        old, new = before.get(key), after.get(key)
        if old != new:
            yield f"{noun}: {old or 'none'} → {new or 'none'}"
    if before.get("hardened") != after.get("hardened"):
        yield f"base: {HARDENED_TEXT if after.get('hardened') else 'no longer hardened'}"
    if before.get("standalone") != after.get("standalone"):
        yield "base: another build of the same Python release"


def _image_settings(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    for noun, key in ITEMS.items():
        old, new = _texts(before.get(key)), _texts(after.get(key))
        groups = {
            "added": [name for name in new if name not in old],
            "changed": [name for name in new if name in old and new[name] != old[name]],
            "removed": [name for name in old if name not in new],
        }
        for verb, names in groups.items():
            if names:
                yield f"{noun}{'s' if names[1:] else ''} {verb}: {join_first(names, VALUES)}"
    old_gpus, new_gpus = (_texts(each.get("labels")).get(GPU_LABEL, "") for each in (before, after))
    if old_gpus != new_gpus:
        yield f"compute capabilities: {old_gpus or 'none'} → {new_gpus or 'none'}"
    for key, name in NAMED_SETTINGS.items():
        if before.get(key) != after.get(key):
            yield f"{name}: {_value(before.get(key))} → {_value(after.get(key))}"
    for key, (first, other, none) in SENTENCES.items():
        if before.get(key) != after.get(key):
            yield first if not before.get(key) else other if after.get(key) else none


def _value(value: object) -> str:
    """Format a setting in one line."""
    return " ".join(map(str, value)) if isinstance(value, list) else str(value or "none")


def _texts(value: object) -> dict[str, str]:
    """Return the strings of a JSON object by key. Empty for other values."""
    if not isinstance(value, dict):
        return {}
    return {str(key): str(text) for key, text in value.items()}


def _line(text: str) -> str:
    printable = "".join(filter(str.isprintable, text))
    return printable if len(printable) <= LONGEST_VALUE else f"{printable[:LONGEST_VALUE]}…"
