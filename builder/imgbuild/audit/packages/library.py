"""Caches the facts about wheels in the store, so that each wheel is read once.

The key consists of the sha256 of the wheel and a hash of the reading code. Modules are read on
demand and stored in one blob for each wheel. `save` adds to the blob under a lock, so that
processes that read the same wheel do not overwrite each other's facts. Facts about remote wheels
are stored separately. The sha256 of a local wheel was checked, but ranges of a remote wheel were
checked only by CRC.
"""

from __future__ import annotations

import contextlib
import fnmatch
import itertools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Self, TypeVar

import msgspec

from imgbuild import codec
from imgbuild.audit.packages import advised, generated, loaded
from imgbuild.audit.packages.advised import AdvisedExtra, part_files, read_advised
from imgbuild.audit.packages.content import LIMIT, SearchText, WheelContent
from imgbuild.audit.packages.extensions import extension_modules
from imgbuild.audit.packages.generated import GeneratedCode, generated_files, read_generated
from imgbuild.audit.packages.loaded import NamesByFile, loading_files, read_loaded
from imgbuild.audit.packages.published import (
    PublishedFacts,
    PublishedWheelFacts,
    published_facts,
    relative_lines,
)
from imgbuild.audit.packages.reading import (
    ReaderProcesses,
    ReadRequest,
    WheelIndex,
    WheelMetadata,
    assembler_files,
    find_modules,
    installed_path,
    open_content,
    read_assemblers,
    read_index,
    reader_version,
)
from imgbuild.audit.packages.shortened import shorten_source
from imgbuild.audit.source.facts import ElfFacts, ModuleFacts
from imgbuild.cache.fact_values import read_fact, write_fact
from imgbuild.cache.store import Store
from imgbuild.errors import ControlSignal
from imgbuild.index.remote_wheel import RangeClient
from imgbuild.lock.resolution import Wheel
from imgbuild.system import decoding
from imgbuild.system.forked import processor_count
from imgbuild.system.reporter import ProgressBar, Reporter
from imgbuild.values import normalize_package, sha256

T = TypeVar("T")
Mentions = dict[str, tuple[str, ...]]  # "PARENT WORD" → the modules below PARENT that have WORD
INDEX, MODULES, ELF_FACTS, MEMBER = "audit-index", "audit-modules", "audit-elves", "audit-member"
TEXT, IMPORTS, MENTIONS = "audit-sources", "audit-imports", "audit-mentions"
REMOTE_SUFFIX = "-remote"
PUBLISHED = "published-1"
CAPITALS = "capitals-1"
ASSEMBLERS = "assemblers-1"
_CAPITALS = re.compile(rb"\b[A-Z][A-Z0-9_]+")
_IMPORTS = re.compile(rb"^[ \t]*(?:from|import)[ \t]+([A-Za-z_]\w*)", re.MULTILINE)


class LibraryWheel:
    """The facts about a wheel in the library, read on demand. Not thread-safe."""

    def __init__(
        self, wheel: Wheel, where: Path | str, library: Library, omit: Sequence[str] = ()
    ) -> None:
        self.wheel = wheel
        self.omit = omit
        self.package = normalize_package(wheel.package)
        self.version = wheel.version
        self.where = where
        self._library = library
        self._modules: dict[str, Mapping[str, str]] = {}
        self._found: dict[str, ModuleFacts] = {}
        self._new: set[str] = set()
        self._texts: dict[str, SearchText] = {}
        self._mentions: Mentions | None = None
        self._new_mentions: set[str] = set()
        self._kept: dict[str, msgspec.Raw] | None = None
        self._elf_facts: tuple[ElfFacts, ...] | None = None

    @property
    def is_local(self) -> bool:
        """Whether the wheel is a local file. Shared objects are read only from local files."""
        return isinstance(self.where, Path)

    @cached_property
    def content(self) -> WheelContent:
        """The content of the wheel."""
        if self._library.only_parent_downloads and not self.is_local:
            raise DownloadRequired(self.wheel.file)
        return open_content(self.where, self.wheel.file, self._library.http)

    @cached_property
    def published_wheel_facts(self) -> PublishedWheelFacts | None:
        """The published facts about the wheel, or None if there are none.

        They are stored, because the facts about all wheels of a package are slow to decompress.
        """
        published, store = self._library.published, self._library.store
        if not published.has_wheel(self.wheel.sha256):
            return None
        key = f"{published.version(self.package)} {self.wheel.sha256}"
        facts = read_fact(store, PUBLISHED, key, PublishedWheelFacts)
        if facts is None:
            facts = published.wheel(self.package, self.wheel.sha256)
            if facts is not None:
                write_fact(store, PUBLISHED, key, facts)
        return facts

    @cached_property
    def index(self) -> WheelIndex:
        """The files and METADATA of the wheel."""
        wheel_index = self._stored_value(INDEX, WheelIndex)
        if wheel_index is None and self.published_wheel_facts is not None:
            wheel_index = self.published_wheel_facts.index
        if wheel_index is None:
            wheel_index = read_index(self.content)
            self._store_value(INDEX, wheel_index)
        return wheel_index

    @property
    def has_cached_index(self) -> bool:
        """Whether `index` is published or stored."""
        is_published = self._library.published.has_wheel(self.wheel.sha256)
        return is_published or self._stored_value(INDEX, WheelIndex) is not None

    @cached_property
    def files(self) -> Mapping[str, int]:
        """The size of each path in the wheel, without files that match the `omit` patterns."""
        return {path: size for path, size in self.index.files.items() if not self._is_omitted(path)}

    def _is_omitted(self, path: str) -> bool:
        return any(fnmatch.fnmatchcase(installed_path(path), pattern) for pattern in self.omit)

    @property
    def metadata(self) -> WheelMetadata:
        """The METADATA of the wheel."""
        return self.index.metadata

    def modules(self, python: str) -> Mapping[str, str]:
        """Map each module to the file that Python `python` imports: a source file or "….so"."""
        if python not in self._modules:
            self._modules[python] = extension_modules(self.files, python)
        return self._modules[python]

    @cached_property
    def sources(self) -> Mapping[str, str]:
        """The source file of each module, even if Python would import an extension module."""
        return _sources(self.files)

    def read(self, paths: Iterable[str]) -> dict[str, bytes]:
        """Return the contents of small files, which are cached. Missing files are omitted."""
        contents: dict[str, bytes] = {}
        missing: list[str] = []
        published = (
            self.published_wheel_facts.members if self.published_wheel_facts is not None else {}
        )
        for path in paths:
            if self._is_omitted(path):
                continue
            stored = self._stored_value(MEMBER, bytes, f"/{path}")
            if stored is not None:
                contents[path] = stored
            elif path in published:
                contents[path] = published[path]
            elif path in self.files:
                missing.append(path)
        for path, data in self.content.read(missing).items() if missing else ():
            self._store_value(MEMBER, data, f"/{path}")
            contents[path] = data
        return contents

    @cached_property
    def imports(self) -> Mapping[str, tuple[str, ...]]:
        """The top-level modules in the import lines of each module."""
        form = dict[str, tuple[str, ...]]
        stored: Mapping[str, tuple[str, ...]] | None = self._stored_value(IMPORTS, form)
        if stored is None and self.published_wheel_facts is not None:
            stored = self.published_wheel_facts.imports
        if stored is None:
            modules = {file: module for module, file in _sources(self.index.files).items()}
            stored = {
                modules[file]: tuple(sorted({name.decode() for name in _IMPORTS.findall(source)}))
                for file, source in self.content.read(modules).items()
            }
            self._store_value(IMPORTS, stored)
        return {name: imported for name, imported in stored.items() if name in self.sources}

    def names_in_capitals(self, tops: Iterable[str]) -> frozenset[str]:
        """Return the names in capital letters, such as environment variables, below `tops`.

        `tops` are top-level modules.
        """
        form = tuple[str, ...]

        def _read_names() -> tuple[str, ...]:
            present = {name.partition(".")[0] for name in self.sources}
            texts = [self.text(top).source for top in sorted(present.intersection(tops))]
            names = {name.decode() for text in texts for name in _CAPITALS.findall(text)}
            return tuple(sorted(name for name in names if "_" in name and name[-1] != "_"))

        return frozenset(self._read_once(CAPITALS, form, _read_names))

    @cached_property
    def generated_code(self) -> tuple[GeneratedCode, ...]:
        """The protobuf-generated modules that check the protobuf version."""
        if not generated_files(self.files):
            return ()
        codes = self._read_once(
            generated.KIND, tuple[GeneratedCode, ...], lambda: read_generated(self.content)
        )
        return tuple(code for code in codes if code.file in self.files)

    @cached_property
    def advised_extras(self) -> tuple[AdvisedExtra, ...]:
        """The extras that the package recommends in its import errors."""
        if not part_files(self.files):
            return ()
        form = tuple[AdvisedExtra, ...]
        return self._read_once(advised.KIND, form, lambda: read_advised(self.content, self.package))

    def mentioning(self, parent: str, word: str) -> tuple[str, ...]:
        """Return the modules below `parent` whose source contains `word`."""
        if self._mentions is None:
            published = (
                self.published_wheel_facts.mentions
                if self.published_wheel_facts is not None
                else {}
            )
            self._mentions = {**published, **self._stored_entries(MENTIONS, Mentions)}
        key = f"{parent} {word}"
        if key not in self._mentions:
            self._mentions[key] = self.text(parent).modules_containing(word.encode())
            self._new_mentions.add(key)
        return self._mentions[key]

    def text(self, parent: str) -> SearchText:
        """Return the sources of all modules below `parent`, for text search."""
        if parent not in self._texts:
            text = self._stored_value(TEXT, SearchText, f"/{parent}")
            if text is None:
                text = self._read_text(parent)
                self._store_value(TEXT, text, f"/{parent}")
            self._texts[parent] = text
        return self._texts[parent]

    def _read_text(self, parent: str) -> SearchText:
        files = {
            module: file
            for module, file in _sources(self.index.files).items()
            if module.startswith(f"{parent}.")
        }
        sources = self.content.read(files.values())
        ordered = [sources[file] for file in files.values()]
        return SearchText(
            modules=tuple(files),
            ends=tuple(itertools.accumulate(len(source) for source in ordered)),
            source=b"".join(ordered),
        )

    # -- modules

    def module(self, name: str) -> ModuleFacts | None:
        """Return the facts about the module `name`, or None if it has no source."""
        if name not in self._found:
            self._library.prefetch({self: [name]})
        return self._found.get(name)

    def lacking(self, names: Iterable[str]) -> dict[str, str]:
        """Map each module in `names` that was not read yet to its file."""
        missing = {
            name: self.sources[name]
            for name in names
            if name not in self._found and name in self.sources
        }
        if missing and self._kept is None:
            self._kept = self._stored_entries(MODULES, dict[str, msgspec.Raw])
        for name in list(missing):
            encoded = (self._kept or {}).get(name)
            if encoded is not None:
                self._found[name] = decoding.decode_msgpack(encoded, ModuleFacts)
                del missing[name]
            elif self.published_wheel_facts is not None:
                published = self.published_wheel_facts.module(name)
                if published is not None:
                    self._found[name] = published
                    del missing[name]
        return missing

    def add_facts(self, facts: Mapping[str, ModuleFacts]) -> None:
        """Add facts about modules. `save` stores them."""
        self._found.update(facts)
        self._new.update(facts)

    def save(self) -> None:
        """Store the facts and search results since the last call."""
        if self._new_mentions:
            with self._library.store.hold_lock(f"audit-{self.wheel.sha256}"):
                mentions = self._mentions or {}
                new_mentions = {key: mentions[key] for key in sorted(self._new_mentions)}
                stored_mentions = self._stored_entries(MENTIONS, Mentions)
                self._store_value(MENTIONS, stored_mentions | new_mentions)
            self._new_mentions.clear()
        if not self._new:
            return
        new = {
            name: msgspec.Raw(msgspec.msgpack.encode(self._found[name]))
            for name in sorted(self._new)
        }
        with self._library.store.hold_lock(f"audit-{self.wheel.sha256}"):
            stored = self._stored_entries(MODULES, dict[str, msgspec.Raw])
            self._store_value(MODULES, stored | new)
        self._new.clear()

    # -- shared objects

    def elf_facts(self) -> tuple[ElfFacts, ...]:
        """Return the shared objects and programs, or () for a remote wheel."""
        self._library.prefetch_elf_facts([self])
        return tuple(
            facts for facts in self.stored_elf_facts() or () if not self._is_omitted(facts.file)
        )

    def stored_elf_facts(self) -> tuple[ElfFacts, ...] | None:
        """Return the shared objects from the store, or None if they are not stored."""
        if self._elf_facts is None:
            stored = self._stored_value(ELF_FACTS, tuple[ElfFacts, ...])
            if stored is None:
                stored = self._library.published.elf_facts(self.package, self.wheel.sha256)
            self._elf_facts = stored
        return self._elf_facts

    @cached_property
    def assemblers(self) -> tuple[ElfFacts, ...]:
        """The assemblers for GPU code.

        Assemblers in a remote wheel are fetched, unless one of them is large.
        """
        stored = self.stored_elf_facts()
        if stored is not None:
            return tuple(
                facts
                for facts in stored
                if facts.ptxas_architectures and not self._is_omitted(facts.file)
            )
        files = assembler_files(self.index.files)
        if not files or max(self.index.files[file] for file in files) > LIMIT:
            return ()
        form = tuple[ElfFacts, ...]
        read = self._read_once(ASSEMBLERS, form, lambda: read_assemblers(self.content, files))
        return tuple(facts for facts in read if not self._is_omitted(facts.file))

    @cached_property
    def loaded(self) -> NamesByFile:
        """The library names in the strings of each shared object that loads libraries by name."""
        loading = loading_files(self.elf_facts(), self.files)
        if not loading:
            return {}
        return self._read_once(
            loaded.KIND, dict[str, tuple[str, ...]], lambda: read_loaded(self.content, loading)
        )

    def keep_elf_facts(self, elf_facts: tuple[ElfFacts, ...]) -> None:
        """Store the facts about the wheel's shared objects."""
        self._elf_facts = elf_facts
        self._store_value(ELF_FACTS, elf_facts)

    # -- facts in the store

    def stored_facts(self, whole: Collection[str] = ()) -> PublishedWheelFacts:
        """Return the facts to publish, read from the wheel.

        Modules that cannot be parsed are omitted, because another version of Python may parse them.
        Sources are stored without docstrings and comments, except for files whose paths are in
        `whole`.
        """
        modules = self._stored_value(MODULES, dict[str, msgspec.Raw]) or {}
        return PublishedWheelFacts(
            index=self.index,
            crcs={path: member.crc for path, member in self.content.members().items()},
            modules={
                name: relative_lines(raw)
                for name, raw in modules.items()
                if not decoding.decode_msgpack(raw, ModuleFacts).broken
            },
            members={
                path: shorten_source(data) if path.endswith(".py") and path not in whole else data
                for path in self.index.files
                if (data := self._stored_value(MEMBER, bytes, f"/{path}")) is not None
            },
            imports=self._stored_value(IMPORTS, dict[str, tuple[str, ...]]),
            mentions=self._stored_entries(MENTIONS, Mentions),
            elf_facts=self._stored_value(ELF_FACTS, tuple[ElfFacts, ...]),
        )

    def _read_once(self, kind: str, form: type[T], read: Callable[[], T]) -> T:
        """Return a fact of the type `form` from the published facts, the store or `read`."""
        kinds = (kind,) if self.is_local else (kind, kind + REMOTE_SUFFIX)
        for each in kinds:
            stored = read_fact(self._library.store, each, self.wheel.sha256, form)
            if stored is not None:
                return stored
        value = read()
        write_fact(self._library.store, kinds[-1], self.wheel.sha256, value)
        return value

    def _stored_value(self, kind: str, form: type[T], more: str = "") -> T | None:
        return next(self._stored_values(kind, form, more), None)

    def _stored_entries(self, kind: str, form: type[dict[str, T]]) -> dict[str, T]:
        """Return a dictionary that grows. A remote wheel adds to the entries of a local one."""
        entries: dict[str, T] = {}
        for stored in self._stored_values(kind, form):
            entries = stored | entries
        return entries

    def _stored_values(self, kind: str, form: type[T], more: str = "") -> Iterator[T]:
        """Yield the values that were stored for a local file and, for a remote wheel, for it."""
        key = f"{self.wheel.sha256} {reader_version()}{more}"
        kinds = (kind,) if self.is_local else (kind, kind + REMOTE_SUFFIX)
        for each in kinds if self._library.stored else ():
            value = read_fact(self._library.store, each, key, form)
            if value is not None:
                yield value

    def _store_value(self, kind: str, value: object, more: str = "") -> None:
        if not self._library.stored:
            return
        key = f"{self.wheel.sha256} {reader_version()}{more}"
        write_fact(self._library.store, kind if self.is_local else kind + REMOTE_SUFFIX, key, value)


class DownloadRequired(ControlSignal):
    """A forked copy of the process needs a file that only its parent downloads.

    It is not a FetchFailed, after which checks continue with less knowledge of the packages.
    """


class Library:
    """The facts about all wheels, and the store that caches them. Closing saves the facts."""

    def __init__(
        self,
        store: Store,
        http: RangeClient | None = None,
        *,
        processes: int | None = None,
        published: PublishedFacts | None = None,
        ahead: bool = True,
        stored: bool = True,
    ) -> None:
        """Open the library. With `ahead`, more modules than required are read if that is faster.

        Without `stored`, only published facts are used, which are the same on every machine.
        """
        self.store = store
        self.published = published_facts() if published is None else published
        self.http = http
        self.only_parent_downloads = False
        self.ahead = ahead
        self.stored = stored
        self.workers = ReaderProcesses(processes or processor_count())
        self._library_wheels: dict[tuple[str, bool, tuple[str, ...]], LibraryWheel] = {}
        self._bar: ProgressBar | None = None
        self._read: set[str] = set()  # packages that the bar counts

    @contextlib.contextmanager
    def progress(self, title: str, packages: int, reporter: Reporter) -> Iterator[None]:
        """Show a progress bar for the `packages` packages that are read in this context."""
        with reporter.progress(title, packages, unit="packages read") as bar:
            self._bar = bar
            try:
                yield
            finally:
                self._bar = None

    def _count_package(self, library_wheel: LibraryWheel) -> None:
        if self._bar is not None and library_wheel.package not in self._read:
            self._read.add(library_wheel.package)
            self._bar.advance(1)

    @contextlib.contextmanager
    def use_in_copied_process(self) -> Iterator[None]:
        """Use the library in a forked copy of the process (`system.forked`), and save its facts.

        Files are opened again, because copies of an open file share its position. Raises
        DownloadRequired where the parent would download a part of a wheel.
        """
        self.only_parent_downloads = self.http is not None
        self.workers = ReaderProcesses(1)
        for library_wheel in self._library_wheels.values():
            vars(library_wheel).pop("content", None)
        yield
        self.save()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.workers.close()
        self.save()

    def wheel(self, wheel: Wheel, where: Path | str, omit: Sequence[str] = ()) -> LibraryWheel:
        """Return the facts about `wheel`, which is at `where` (a file or URL).

        Paths relative to site-packages that match the patterns `omit` are treated as missing.
        """
        key = (wheel.sha256, isinstance(where, Path), tuple(omit))
        library_wheel = self._library_wheels.get(key)
        if library_wheel is None:
            library_wheel = self._library_wheels[key] = LibraryWheel(wheel, where, self, omit)
        return library_wheel

    def prefetch(self, requested: Mapping[LibraryWheel, Iterable[str]]) -> None:
        """Read modules of several wheels, in several processes and with few requests."""
        requests = {
            library_wheel: library_wheel.lacking(names)
            for library_wheel, names in requested.items()
        }
        requests = {library_wheel: files for library_wheel, files in requests.items() if files}
        answers = self.workers.modules(
            [
                ReadRequest(library_wheel.content, files, library_wheel.files)
                for library_wheel, files in requests.items()
            ]
        )
        for library_wheel, facts in zip(requests, answers, strict=True):
            library_wheel.add_facts(facts)
        for library_wheel in requested:
            self._count_package(library_wheel)

    def prefetch_elf_facts(self, library_wheels: Sequence[LibraryWheel]) -> None:
        """Read the shared objects of the local wheels that were not read before."""
        unread = [
            library_wheel
            for library_wheel in library_wheels
            if library_wheel.is_local and library_wheel.stored_elf_facts() is None
        ]
        for library_wheel, elf_facts in zip(
            unread,
            self.workers.elf_facts([library_wheel.content for library_wheel in unread]),
            strict=True,
        ):
            library_wheel.keep_elf_facts(elf_facts)
            self._count_package(library_wheel)

    def cached_set_value(
        self,
        kind: str,
        python: str,
        library_wheels: Sequence[LibraryWheel],
        form: type[T],
        read: Callable[[], T],
    ) -> T:
        """Return a fact about a set of wheels for `python`, from the store or from `read`."""
        parts = [
            (wheel.package, wheel.wheel.sha256, wheel.is_local, tuple(wheel.omit))
            for wheel in library_wheels
        ]
        key = sha256(codec.encode_compact([reader_version(), python, sorted(parts)]))
        value = read_fact(self.store, kind, key, form)
        if value is None:
            value = read()
            write_fact(self.store, kind, key, value)
        return value

    def save(self) -> None:
        """Store all facts that were read since the last call."""
        for library_wheel in self._library_wheels.values():
            library_wheel.save()


def _sources(files: Iterable[str]) -> dict[str, str]:
    return find_modules(file for file in files if file.endswith(".py"))
