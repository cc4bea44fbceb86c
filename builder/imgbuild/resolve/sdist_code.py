"""Finds the code that an sdist would compile, and its requirements, without running it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

import msgspec

from imgbuild.cache.context import Context
from imgbuild.errors import ImgbuildError
from imgbuild.index.candidates import is_sdist
from imgbuild.index.pages import IndexFile
from imgbuild.resolve.feasible import IndexPages, UnmetDemand
from imgbuild.solve import native_code
from imgbuild.system import decoding
from imgbuild.values import sha256
from imgbuild.wheel.sdist import read_entries

FACT = "sdist-code-4"
LIMIT = 24 << 20  # bytes of an sdist that is looked into
TEXT_LIMIT = 1 << 20  # bytes of a file that is read
# Without a module in another place, and without requirements, an sdist is a placeholder.
NO_MODULES = re.compile(
    r"(tests?|testing|samples?|examples?|docs?|scripts|tools)/|[^/]*\.egg-info/"
    r"|(setup|conftest|versioneer|noxfile|tasks|fabfile)\.py\Z"
)
NATIVE_REASON = "only an sdist that requires a compiler exists; specify the URL of a wheel"
MODULES = (".py", ".pyi", ".pth")
PLACEHOLDER = "only a placeholder sdist without a module exists; specify the URL of a wheel"
ContentKind = Literal["python", "native", "cuda", "placeholder", "unread"]
INFO = ("PKG-INFO", "requires.txt")  # in the folder of the metadata, which has any name


class SdistContent(msgspec.Struct, frozen=True):
    """The type of code that a build of an sdist compiles, and its `Requires-Dist` lines.

    A placeholder has neither code nor requirements, because the package is published elsewhere.
    """

    code: ContentKind
    requires: bytes = b""


UNREAD_CONTENT = SdistContent("unread")  # of one that cannot be looked into


def read_sdist_content(file: IndexFile, context: Context) -> SdistContent:
    """Return the content of an sdist, or `UNREAD_CONTENT` if it is too large or unreadable."""
    if file.size is not None and file.size > LIMIT:
        return UNREAD_CONTENT
    key = file.sha256 or file.url
    stored = context.store.fact(FACT, key)
    if stored is not None:
        return decoding.decode_msgpack(stored, SdistContent)
    try:
        content = _read_archive(file, context)
    except ImgbuildError as error:
        context.reporter.detail(f"{file.name}: {error.message}")
        return UNREAD_CONTENT
    context.store.put_fact(FACT, key, msgspec.msgpack.encode(content))
    return content


def obstacle_code(obstacle: UnmetDemand, pages: IndexPages) -> ContentKind:
    """Return the type of code that a build of the package compiles, or "unread" if unknown."""
    files = (
        file
        for file in pages.files(obstacle.package)
        if is_sdist(file) and str(file.version) == obstacle.version
    )
    file = next(files, None)
    return read_sdist_content(file, pages.context).code if file is not None else UNREAD_CONTENT.code


def _read_archive(file: IndexFile, context: Context) -> SdistContent:
    data = context.http.fetch_bytes(file.url)
    if file.sha256 is not None and sha256(data) != file.sha256:
        return UNREAD_CONTENT
    names: list[str] = []
    texts: dict[str, str] = {}
    info: dict[str, bytes] = {}
    with context.store.scratch() as scratch:
        path = scratch / "sdist"
        path.write_bytes(data)
        for member, content in read_entries(path, file.name):
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
    requires = _info_lines(info)
    code: ContentKind = native_code.code_kind(names, texts)
    if code == "python" and not requires and not any(map(_is_module, names)):
        code = "placeholder"
    return SdistContent(code, requires)


def _is_module(name: str) -> bool:
    return name.endswith(MODULES) and NO_MODULES.match(name) is None


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
