"""The facts of wheels, read once and kept by the wheel's sha256.

Comes in: a wheel and where it lies. Goes out: a `Book`: its files, METADATA, the modules that it
brings, what each of them says, and its shared objects. What was read is kept in the store under
the wheel's hash and FACTS_FORMAT, so that it is read once on a machine.

A wheel's modules are read as they are asked for. They are kept in one blob for each wheel, to which
`save` adds under a lock: several processes may read one wheel, none loses what another found.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from email.parser import HeaderParser
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import msgspec
from isal import isal_zlib

from imgbuild.audit.content import Content, open_content
from imgbuild.audit.facts import FACTS_FORMAT, ElfFacts, ModuleFacts
from imgbuild.errors import IntegrityError
from imgbuild.remote import Ranges
from imgbuild.resolution import Wheel
from imgbuild.store import Store
from imgbuild.values import normalize

T = TypeVar("T")
INDEX, MODULES, ELVES, MEMBER = "audit-index", "audit-modules", "audit-elves", "audit-member"


class Metadata(msgspec.Struct, frozen=True, kw_only=True):
    """The part of METADATA that says with what a wheel can live."""

    name: str
    version: str
    requires: tuple[str, ...] = ()
    requires_python: str = ""
    extras: tuple[str, ...] = ()


class Index(msgspec.Struct, frozen=True, kw_only=True):
    """What a wheel holds: the sizes of its files, and METADATA."""

    files: dict[str, int]
    metadata: Metadata


class Book:
    """One wheel of the library. Read lazily; threads may not share it."""

    def __init__(self, wheel: Wheel, where: Path | str, library: Library) -> None:
        self.wheel = wheel
        self.package = normalize(wheel.package)
        self.version = wheel.version
        self.where = where
        self._library = library
        self._found: dict[str, ModuleFacts] = {}
        self._new: dict[str, ModuleFacts] = {}
        self._kept: dict[str, msgspec.Raw] | None = None

    @property
    def local(self) -> bool:
        """Whether the wheel lies on this disk: only then `elves` are read."""
        return isinstance(self.where, Path)

    @cached_property
    def content(self) -> Content:
        """The wheel itself."""
        return open_content(self.where, self.wheel.file, self._library.http)

    @cached_property
    def index(self) -> Index:
        """Its files and METADATA."""
        kept = self._library.fetch(INDEX, self.wheel.sha256, Index)
        if kept is None:
            kept = _read_index(self.content)
            self._library.keep(INDEX, self.wheel.sha256, kept)
        return kept

    @property
    def files(self) -> Mapping[str, int]:
        """Path in the wheel → size."""
        return self.index.files

    @property
    def metadata(self) -> Metadata:
        """Its METADATA."""
        return self.index.metadata

    @cached_property
    def modules(self) -> Mapping[str, str]:
        """Module → its file in the wheel, Python source or compiled ("….so")."""
        return find_modules(self.files)

    def read(self, paths: Iterable[str]) -> dict[str, bytes]:
        """The content of small files that hold no Python code; kept too."""
        found: dict[str, bytes] = {}
        missing: list[str] = []
        for path in paths:
            kept = self._library.store.fact(MEMBER, f"{self.wheel.sha256}/{path}")
            if kept is not None:
                found[path] = kept
            elif path in self.files:
                missing.append(path)
        for path, data in self.content.read(missing).items() if missing else ():
            self._library.store.put_fact(MEMBER, f"{self.wheel.sha256}/{path}", data)
            found[path] = data
        return found

    def module(self, name: str) -> ModuleFacts | None:
        """What the source of module `name` says; None if it has none or is compiled."""
        if name not in self._found:
            self.prefetch([name])
        return self._found.get(name)

    def prefetch(self, names: Iterable[str]) -> None:
        """Read several modules at once: one pass over the wheel, few requests to a server."""
        wanted = [
            name
            for name in dict.fromkeys(names)
            if name not in self._found and self.modules.get(name, "").endswith(".py")
        ]
        if not wanted:
            return
        if self._kept is None:
            self._kept = self._library.fetch_modules(self.wheel.sha256)
        for name in wanted:
            if name in self._kept:
                self._found[name] = msgspec.msgpack.decode(self._kept[name], type=ModuleFacts)
        missing = {self.modules[name]: name for name in wanted if name not in self._found}
        if missing:
            self._new.update(self._parse(missing))
            self._found.update(self._new)

    def _parse(self, missing: Mapping[str, str]) -> dict[str, ModuleFacts]:
        from imgbuild.audit.syntax import read_module

        sources = self.content.read(missing)
        return {
            name: read_module(sources[file], name, file, package=file.endswith("/__init__.py"))
            for file, name in missing.items()
        }

    def elves(self) -> tuple[ElfFacts, ...]:
        """Its shared objects and programs; nothing for a wheel that is not on this disk."""
        kept = self._library.fetch(ELVES, self.wheel.sha256, tuple[ElfFacts, ...])
        if kept is None:
            if not self.local:
                return ()
            kept = _read_elves(self.content, self.files)
            self._library.keep(ELVES, self.wheel.sha256, kept)
        return kept

    def save(self) -> None:
        """Keep the modules that were read since the last time."""
        if self._new:
            self._library.add_modules(self.wheel.sha256, self._new)
            self._new = {}


class Library:
    """Books by their wheel, and the store that remembers them. Saves at its end."""

    def __init__(self, store: Store, http: Ranges | None = None) -> None:
        self.store = store
        self.http = http
        self._books: dict[str, Book] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.save()

    def book(self, wheel: Wheel, where: Path | str) -> Book:
        """The book of `wheel`, which lies at `where` (a file, or the address of one)."""
        book = self._books.get(wheel.sha256)
        if book is None:
            book = self._books[wheel.sha256] = Book(wheel, where, self)
        return book

    def save(self) -> None:
        """Keep all that was read since the last time."""
        for book in self._books.values():
            book.save()

    # -- facts in the store

    def fetch(self, kind: str, sha256: str, form: type[T]) -> T | None:
        """What is kept under `kind` of the wheel `sha256`; None if absent or unreadable."""
        data = self.store.fact(kind, f"{sha256} {FACTS_FORMAT}")
        return None if data is None else unpack(data, form)

    def keep(self, kind: str, sha256: str, value: object) -> None:
        """Keep `value`."""
        self.store.put_fact(kind, f"{sha256} {FACTS_FORMAT}", pack(value))

    def fetch_modules(self, sha256: str) -> dict[str, msgspec.Raw]:
        """Module → its facts, still encoded, of all that were ever read of this wheel."""
        return self.fetch(MODULES, sha256, dict[str, msgspec.Raw]) or {}

    def add_modules(self, sha256: str, found: Mapping[str, ModuleFacts]) -> None:
        """Keep `found` beside what is there."""
        encoded = {
            name: msgspec.Raw(msgspec.msgpack.encode(facts)) for name, facts in found.items()
        }
        with self.store.exclusive(f"audit-{sha256}"):
            self.keep(MODULES, sha256, self.fetch_modules(sha256) | encoded)


def pack(value: object) -> bytes:
    """`value` as compressed MessagePack."""
    return bytes(isal_zlib.compress(msgspec.msgpack.encode(value), 1))


def unpack(data: bytes, form: type[T]) -> T | None:
    """What `pack` was given; None if `data` is something else."""
    try:
        return msgspec.msgpack.decode(isal_zlib.decompress(data), type=form)
    except (isal_zlib.error, msgspec.DecodeError):
        return None


def find_modules(files: Iterable[str]) -> dict[str, str]:
    """Module → file of all that Python can import out of a wheel with these files.

    A compiled module wins over the source beside it, as in Python.
    """
    found: dict[str, str] = {}
    for file in files:
        name = module_name(file)
        if name is not None and (name not in found or not file.endswith(".py")):
            found[name] = file
    return found


_DATA = re.compile(r"[^/]+\.data/(?:purelib|platlib)/")


def module_name(file: str) -> str | None:
    """The module that the member `file` of a wheel becomes; None if it is none."""
    path = _DATA.sub("", file, count=1)
    if path.endswith(".py"):
        stem = path.removesuffix(".py").removesuffix("/__init__")
    elif path.endswith(".so"):
        folder, _, base = path.rpartition("/")
        stem = f"{folder}/{base.partition('.')[0]}" if folder else base.partition(".")[0]
    else:
        return None
    parts = stem.split("/")
    return ".".join(parts) if all(part.isidentifier() for part in parts) else None


def _read_index(content: Content) -> Index:
    members = content.members()
    found = [
        name for name in members if name.endswith(".dist-info/METADATA") and name.count("/") == 1
    ]
    if len(found) != 1:
        message = f"{content.label}: {len(found)} files .dist-info/METADATA in it, expected one"
        raise IntegrityError(message)
    text = content.read(found)[found[0]].decode("utf-8", "replace")
    return Index(
        files={name: member.size for name, member in sorted(members.items())},
        metadata=parse_metadata(text),
    )


def parse_metadata(text: str) -> Metadata:
    """METADATA from its text."""
    headers = HeaderParser().parsestr(text)
    return Metadata(
        name=headers.get("Name", ""),
        version=headers.get("Version", ""),
        requires=tuple(" ".join(line.split()) for line in headers.get_all("Requires-Dist", [])),
        requires_python=headers.get("Requires-Python", "").strip(),
        extras=tuple(extra.strip() for extra in headers.get_all("Provides-Extra", [])),
    )


_NEVER_ELF = (".py", ".pyi", ".txt", ".json", ".h", ".hpp", ".cuh", ".cu", ".md", ".html", ".js")


def _read_elves(content: Content, files: Mapping[str, int]) -> tuple[ElfFacts, ...]:
    from imgbuild.audit.elf import read_elf

    found = []
    for file, size in files.items():
        if size > 64 and not file.endswith(_NEVER_ELF):
            facts = read_elf(content.chunks(file), file)
            if facts is not None:
                found.append(facts)
    return tuple(found)
