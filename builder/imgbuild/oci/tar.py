"""Members of a layer, and their tar headers written by us so that no library can change them.

ustar; a PAX header only where a field needs one (path or link over ustar's limits, size over 8 GiB);
owner names empty; one constant time. Order is the caller's; `sort_key` is byte order of the path.
"""

from __future__ import annotations

import enum
from pathlib import Path

import msgspec

MTIME = 315532800  # 1980-01-01T00:00:00Z: the oldest time that a zip can hold
BLOCK = 512
END = bytes(2 * BLOCK)


class Kind(enum.StrEnum):
    """What a member is."""

    FILE = "file"
    FOLDER = "folder"
    LINK = "symlink"
    HARD = "hardlink"


class Slice(msgspec.Struct, frozen=True, kw_only=True):
    """Content that lies in a file on disk, raw or as a deflate stream."""

    path: Path
    offset: int
    length: int
    deflated: bool
    crc: int


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of a layer. `path` has no leading slash and no trailing one.

    `size` is the content's, uncompressed, in bytes; `content` is None for all but files.
    `pack` asks the layer writer to compress content that is not deflated already.
    """

    path: str
    kind: Kind = Kind.FILE
    mode: int = 0o644
    uid: int = 0
    gid: int = 0
    mtime: int = MTIME
    size: int = 0
    target: str = ""
    content: bytes | Slice | None = None
    pack: bool = False
