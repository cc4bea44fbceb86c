"""Reads the shared objects and the interpreter of an image's base.

The facts are cached in the store under the sha256 of the Debian package.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from imgbuild.audit.binaries.elf import read_elf
from imgbuild.audit.packages.published import published_facts
from imgbuild.audit.packages.reading import reader_version
from imgbuild.audit.source.facts import ElfFacts
from imgbuild.cache.fact_values import read_fact, write_fact
from imgbuild.cache.store import Store
from imgbuild.cpython.python_archive import archive_programs
from imgbuild.deb.archive import read_deb
from imgbuild.lock.resolution import Deb, PythonArchive
from imgbuild.oci.content import FileReader, content_pieces
from imgbuild.oci.tar import LayerMember, MemberKind
from imgbuild.system.threads import StopFlag, run_for_each

FACT, STANDALONE_FACT = "audit-deb", "audit-python-2"
THREADS = 2
# Folders that the dynamic linker searches, and programs that export symbols to modules.
_LIBRARY = re.compile(r"(?:usr/)?lib(?:64)?/(?:[^/]+-linux-gnu/)?[^/]+\.so[^/]*")
_INTERPRETER = re.compile(r"usr/bin/python3\.\d+")


def read_base(debs: Sequence[Deb], locate: Callable[[Deb], Path], store: Store) -> list[ElfFacts]:
    """Return the libraries of `debs`. `locate` returns the file of a Debian package.

    A symbolic link counts as a separate library. Raises IntegrityError if a file is damaged.
    """

    def _deb_libraries(deb: Deb, _: StopFlag) -> tuple[ElfFacts, ...]:
        libraries = stored_libraries(deb, store)
        if libraries is None:
            with store.scratch() as folder:
                libraries = tuple(_read_deb(locate(deb), folder / "files"))
            write_fact(store, FACT, _key(deb), libraries)
        return libraries

    by_deb = run_for_each(debs, _deb_libraries, threads=THREADS)
    return [facts for libraries in by_deb for facts in libraries]


def read_standalone(
    archive: PythonArchive, python: str, locate: Callable[[PythonArchive], Path], store: Store
) -> list[ElfFacts]:
    """Return the interpreter in `archive`, its libraries and its extension modules.

    Raises IntegrityError if a file is damaged.
    """
    facts = read_fact(store, STANDALONE_FACT, _key(archive), tuple[ElfFacts, ...])
    if facts is None:
        read_facts = [
            read_elf(lambda content=content: iter((content(),)), path)  # type: ignore[misc]
            for path, content in archive_programs(locate(archive), archive.file, python)
        ]
        facts = tuple(each for each in read_facts if each is not None)
        write_fact(store, STANDALONE_FACT, _key(archive), facts)
    return [*facts]


def libraries_loaded_first(facts: Sequence[ElfFacts], python: str) -> list[ElfFacts]:
    """Return the interpreter in an archive, and the libraries that it loads.

    The symbols of these libraries are visible to all modules. The dynamic linker does not search
    their folder for other files.
    """
    program = [each for each in facts if posixpath.basename(each.file) == f"python{python}"]
    loaded = {posixpath.basename(name) for each in program for name in each.needed}
    return [*program, *(each for each in facts if each.soname in loaded)]


def is_read(archive: PythonArchive, store: Store) -> bool:
    """Return whether the facts about `archive` are stored.

    If they are, `read_standalone` does not open the archive.
    """
    return store.fact(STANDALONE_FACT, _key(archive)) is not None


def linked_libraries(links: Mapping[str, str]) -> list[ElfFacts]:
    """Return the links that the dynamic linker can find, as libraries.

    `links` maps paths to targets.
    """
    return [
        ElfFacts(file=path[1:], machine="link", soname=posixpath.basename(target))
        for path, target in links.items()
        if _LIBRARY.fullmatch(path[1:]) is not None
    ]


def unread_debs(debs: Sequence[Deb], store: Store) -> list[Deb]:
    """Return the packages in `debs` that `read_base` has to read."""
    return [deb for deb in debs if stored_libraries(deb, store) is None]


def stored_libraries(deb: Deb, store: Store) -> tuple[ElfFacts, ...] | None:
    """Return the libraries of `deb`, from the cache or from the published facts, or None."""
    libraries = read_fact(store, FACT, _key(deb), tuple[ElfFacts, ...])
    return libraries if libraries is not None else published_facts().deb_libraries(deb.sha256)


def _key(file: Deb | PythonArchive) -> str:
    return f"{file.sha256} {reader_version()}"


def _read_deb(path: Path, spool: Path) -> Iterator[ElfFacts]:
    package = read_deb(path, spool, _is_library)
    with FileReader() as files:
        for member in package.members:
            if member.kind is MemberKind.FILE and member.size:
                facts = read_elf(partial(_chunks, member, files), member.path)
                if facts is not None:
                    yield facts
            elif member.kind is MemberKind.LINK:
                yield ElfFacts(
                    file=member.path, machine="link", soname=posixpath.basename(member.target)
                )


def _is_library(path: str, kind: MemberKind) -> bool:
    match = _LIBRARY.fullmatch(path) or _INTERPRETER.fullmatch(path)
    return kind in (MemberKind.FILE, MemberKind.LINK) and match is not None


def _chunks(member: LayerMember, files: FileReader) -> Iterator[bytes]:
    return content_pieces(member.content or b"", member.size, member.path, files)
