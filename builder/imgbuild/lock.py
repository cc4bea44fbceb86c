"""The lock: every input of a target's image, by file name, size, sha256 and index name.

Comes in: a target of the matrix and its resolutions. Goes out: `images/TARGET/lock.json`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from imgbuild.matrix.model import Drop, Target, User
from imgbuild.resolution import Resolution
from imgbuild.values import Arch

LOCK_FORMAT = 1


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What the matrix says about a target's image, all cascades done."""

    prefix: str
    user: User
    workdir: str
    cache: str
    env: dict[str, str]
    labels: dict[str, str]
    entrypoint: tuple[str, ...]
    cmd: tuple[str, ...]


class Cutting(msgspec.Struct, frozen=True, kw_only=True):
    """How the wheels are cut into layers (`layers:` of the matrix)."""

    own_from: int
    named: tuple[str, ...]
    groups: int
    order: tuple[str, ...]
    limit: int


class LockedBase(msgspec.Struct, frozen=True, kw_only=True):
    """The base that the target stands on."""

    name: str
    kind: Literal["debian", "registry"]
    suite: str
    python: str
    glibc: str
    interpreter: str
    packages: tuple[str, ...] = ()


class Lock(msgspec.Struct, frozen=True, kw_only=True):
    """All inputs of one target. From it alone follow the plan and, with `layers.json`, the digests."""

    format: int
    target: str
    cuda: str
    as_of: str
    flashinfer: str
    requirements: dict[str, str]
    indexes: dict[str, str]
    base: LockedBase
    settings: Settings
    layers: Cutting
    drop: tuple[Drop, ...]
    arch: dict[Arch, Resolution]
