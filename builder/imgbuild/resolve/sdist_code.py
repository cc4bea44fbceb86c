"""What an sdist would compile and what it requires, by its members, without running any of it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from imgbuild.cache.context import Context
from imgbuild.errors import ImgbuildError
from imgbuild.index.candidates import is_sdist
from imgbuild.index.pages import IndexFile
from imgbuild.resolve.feasible import IndexPages, Obstacle
from imgbuild.solve import native_code
from imgbuild.solve.native_code import Code
from imgbuild.values import sha256
from imgbuild.wheel.sdist import entries

FACT = "sdist-code-3"
LIMIT = 16 << 20  # bytes of an sdist that is looked into
TEXT_LIMIT = 1 << 20  # bytes of a file that is read
INFO = ("PKG-INFO", "requires.txt")  # in the folder of the metadata, which has any name


class SdistContent(msgspec.Struct, frozen=True):
    """What building an sdist compiles, and its requirements as `Requires-Dist` lines."""

    code: Code
    requires: bytes = b""


UNREAD = SdistContent("native")  # of one that cannot be looked into


def read(file: IndexFile, context: Context) -> SdistContent:
    """The content of the sdist `file`; `UNREAD` if it is too large, or cannot be read."""
    if file.size is not None and file.size > LIMIT:
        return UNREAD
    key = file.sha256 or file.url
    stored = context.store.fact(FACT, key)
    if stored is not None:
        return msgspec.msgpack.decode(stored, type=SdistContent)
    try:
        content = _read(file, context)
    except ImgbuildError as error:
        context.reporter.detail(f"{file.name}: {error.message}")
        return UNREAD
    context.store.put_fact(FACT, key, msgspec.msgpack.encode(content))
    return content


def code_of(obstacle: Obstacle, pages: IndexPages, context: Context) -> Code:
    """What building the package of `obstacle` compiles; "native" if its sdist is not there."""
    files = (
        file
        for file in pages.files(obstacle.package)
        if is_sdist(file) and str(file.version) == obstacle.version
    )
    file = next(files, None)
    return read(file, context).code if file is not None else UNREAD.code


def _read(file: IndexFile, context: Context) -> SdistContent:
    data = context.http.bytes(file.url)
    if file.sha256 is not None and sha256(data) != file.sha256:
        return UNREAD
    names: list[str] = []
    texts: dict[str, str] = {}
    info: dict[str, bytes] = {}
    with context.store.scratch() as scratch:
        path = scratch / "sdist"
        path.write_bytes(data)
        for member, content in entries(path, file.name):
            name = member.path.partition("/")[2]
            if member.kind != "file":
                continue
            names.append(name)
            last = name.rpartition("/")[2]
            if member.size <= TEXT_LIMIT and (name in native_code.TEXTS or last in INFO):
                text = b"".join(content())
                if name in native_code.TEXTS:
                    texts[name] = text.decode("utf-8", "replace")
                else:
                    info.setdefault(last, text)
    return SdistContent(native_code.code_of(names, texts), _info_lines(info))


def _info_lines(texts: Mapping[str, bytes]) -> bytes:
    info = texts.get("PKG-INFO", b"").partition(b"\n\n")[0].splitlines()
    lines = [line for line in info if line.startswith(b"Requires-Dist:")]
    if lines:
        return b"\n".join(lines) + b"\n"
    section = b""
    for line in texts.get("requires.txt", b"").splitlines():
        text = line.strip()
        if text.startswith(b"["):
            section = text.strip(b"[]")
        elif text and (not section or section.startswith(b":")):
            marker = b" ; " + section[1:] if section else b""
            lines.append(b"Requires-Dist: " + text + marker)
    return b"\n".join(lines) + b"\n" if lines else b""
