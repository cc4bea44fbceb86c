"""Defines architectures, digests, sizes and package names, which all stages use."""

from __future__ import annotations

import contextlib
import enum
import hashlib
import platform
import re
from collections.abc import Iterable, Sequence
from io import BufferedReader
from typing import Annotated

from msgspec import Meta

SHA256_PATTERN = r"^[0-9a-f]{64}\Z"  # `$` would accept a newline at the end
DIGEST_PATTERN = r"^sha256:[0-9a-f]{64}\Z"
# A set of characters for a regular expression: those that control a terminal, end a line, or change
# the direction of text (Unicode's bidirectional formatting characters).
CONTROLS = r"\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"

Sha256 = Annotated[str, Meta(pattern=SHA256_PATTERN, description="SHA-256 in lower-case hex")]
Digest = Annotated[str, Meta(pattern=DIGEST_PATTERN, description="OCI digest, sha256:HEX")]
Bytes = Annotated[int, Meta(ge=0, description="a size in bytes")]
SIZE_LIMIT = 1 << 40  # bytes of one file or blob
FileSize = Annotated[int, Meta(ge=0, le=SIZE_LIMIT, description="a size in bytes")]


class Arch(enum.StrEnum):
    """A machine architecture. The value is the name in input and output."""

    X86_64 = "x86_64"
    ARM64 = "arm64"

    @property
    def oci(self) -> str:
        """The value of GOARCH, as in an image configuration."""
        return {"x86_64": "amd64", "arm64": "arm64"}[self.value]

    @property
    def debian(self) -> str:
        """Debian's architecture name."""
        return {"x86_64": "amd64", "arm64": "arm64"}[self.value]

    @property
    def wheel(self) -> str:
        """The suffix of platform tags of wheels, as printed by `uname -m`."""
        return {"x86_64": "x86_64", "arm64": "aarch64"}[self.value]

    @property
    def triplet(self) -> str:
        """Debian's multiarch triplet."""
        return f"{self.wheel}-linux-gnu"

    @classmethod
    def parse(cls, text: str) -> Arch:
        """Parse a common spelling (amd64, aarch64, linux/arm64). Raises ValueError otherwise."""
        name = text.lower().removeprefix("linux/").replace("-", "_")
        spellings = {"amd64": cls.X86_64, "x64": cls.X86_64, "aarch64": cls.ARM64}
        return spellings.get(name) or cls(name)


def native_arch(arches: Sequence[Arch]) -> tuple[Arch, ...]:
    """Only the architecture of this machine if it is in `arches`, else all of `arches`."""
    with contextlib.suppress(ValueError):
        machine = Arch.parse(platform.machine())
        if machine in arches:
            return (machine,)
    return tuple(arches)


def native_arch_first(arches: Iterable[Arch]) -> tuple[Arch, ...]:
    """The architecture of this machine if it is in `arches`, then the others in their order."""
    here = platform.machine()
    return tuple(sorted(arches, key=lambda arch: arch.wheel != here))


class Condition(enum.StrEnum):
    """The state of a target's lock (see `show.status`)."""

    LOCKED = "locked"  # lock and digests follow from the matrix
    STALE = "stale"  # lock or digests are out of date
    UNLOCKED = "not locked"
    NEEDS = "needs"  # not locked, and needs more than the default index


def sha256(data: bytes) -> str:
    """SHA-256 of `data` in hex."""
    return hashlib.sha256(data).hexdigest()


def digest_of(data: bytes) -> Digest:
    """Return the OCI digest of `data`."""
    return f"sha256:{sha256(data)}"


def digest_of_file(file: BufferedReader) -> Digest:
    """Return the OCI digest of `file` from its current position to its end."""
    return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def is_number(text: str) -> bool:
    """Whether `text` consists of the digits 0 to 9. `str.isdecimal` also accepts other digits."""
    return text.isascii() and text.isdecimal()


def normalize_package(package: str) -> str:
    """Normalize a package name by PEP 503: lower case, a hyphen for each run of `-_.`."""
    return re.sub(r"[-_.]+", "-", package).lower()


def environment_markers(python: str, arch: Arch) -> dict[str, str]:
    """The values of environment markers (PEP 508) for CPython `python` ("3.11.2") on Linux."""
    full = python if python.count(".") == 2 else f"{python}.0"
    return {
        "implementation_name": "cpython",
        "implementation_version": full,
        "os_name": "posix",
        "platform_machine": arch.wheel,
        "platform_python_implementation": "CPython",
        "platform_release": "",
        "platform_system": "Linux",
        "platform_version": "",
        "python_full_version": full,
        "python_version": ".".join(full.split(".")[:2]),
        "sys_platform": "linux",
    }
