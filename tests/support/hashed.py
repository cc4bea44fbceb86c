"""Records the names of files that are hashed."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from imgbuild.system import known_hashes


def hashed_files(patch: pytest.MonkeyPatch) -> list[str]:
    """A list to which the name of each hashed file is added, even of small files."""
    patch.setattr(known_hashes, "SMALL_FILE", -1)
    names: list[str] = []
    real = hashlib.file_digest

    def digest(file: Any, kind: Any) -> Any:
        names.append(str(file.name))
        return real(file, kind)

    patch.setattr(hashlib, "file_digest", digest)
    return names
