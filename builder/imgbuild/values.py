"""Small values that all stages share: architectures and digests."""

from __future__ import annotations

import enum
import hashlib
import re
from io import BufferedReader
from typing import Annotated

import msgspec

SHA256_PATTERN = "^[0-9a-f]{64}$"
DIGEST_PATTERN = "^sha256:[0-9a-f]{64}$"

Sha256 = Annotated[
    str, msgspec.Meta(pattern=SHA256_PATTERN, description="SHA-256 in lower-case hex")
]
Digest = Annotated[str, msgspec.Meta(pattern=DIGEST_PATTERN, description="OCI digest, sha256:HEX")]
Bytes = Annotated[int, msgspec.Meta(ge=0, description="a size in bytes")]


class Arch(enum.StrEnum):
    """A machine architecture, named as users name it; its properties are the other spellings."""

    X86_64 = "x86_64"
    ARM64 = "arm64"

    @property
    def oci(self) -> str:
        """GOARCH, as in an image configuration."""
        return {"x86_64": "amd64", "arm64": "arm64"}[self.value]

    @property
    def debian(self) -> str:
        """Debian's architecture name."""
        return {"x86_64": "amd64", "arm64": "arm64"}[self.value]

    @property
    def wheel(self) -> str:
        """The suffix of wheel platform tags, and `uname -m`."""
        return {"x86_64": "x86_64", "arm64": "aarch64"}[self.value]

    @property
    def triplet(self) -> str:
        """Debian's multiarch triplet."""
        return f"{self.wheel}-linux-gnu"

    @classmethod
    def parse(cls, text: str) -> Arch:
        """Any common spelling (amd64, aarch64, linux/arm64, …); ValueError if none fits."""
        name = text.lower().removeprefix("linux/").replace("-", "_")
        spellings = {"amd64": cls.X86_64, "x64": cls.X86_64, "aarch64": cls.ARM64}
        return spellings.get(name) or cls(name)


class Condition(enum.StrEnum):
    """How far a target is, in words (see `states`)."""

    LOCKED = "locked"  # its lock and seal follow from the matrix
    STALE = "stale"  # its lock or seal does not, any more
    UNLOCKED = "not locked"
    NEEDS = "needs"  # not locked, and the default index alone cannot give it


def sha256(data: bytes) -> str:
    """SHA-256 of `data` in hex."""
    return hashlib.sha256(data).hexdigest()


def digest_of(data: bytes) -> Digest:
    """The OCI digest of `data`."""
    return f"sha256:{sha256(data)}"


def digest_of_file(file: BufferedReader) -> Digest:
    """The OCI digest of what is left to read of `file`."""
    return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def normalize(package: str) -> str:
    """A package name as PEP 503 spells it: lower case, one hyphen for each run of `-_.`."""
    return re.sub(r"[-_.]+", "-", package).lower()
