"""Decodes the facts about published wheels and Debian packages that imgbuild bundles.

Each package has one entry, `PublishedPackageFacts`, for all of its wheels, because most of their
files, modules and symbols are the same. `PublishedWheelFacts` contains the facts about one wheel.

Facts that the file omits are read from the wheel: modules, sources and mentions of words that no
audit of a published target requires. An exported symbol is stored as 40 bits of its hash: with a
million symbols, a missing symbol counts as defined with a probability of one in a million.
"""

from __future__ import annotations

import itertools
import re
from array import array
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeVar

import msgspec

from imgbuild.audit.packages.reading import WheelIndex, is_metadata, parse_metadata
from imgbuild.audit.source.facts import ElfFacts, ModuleFacts
from imgbuild.cache.facts_file import FactsFile, installed_facts
from imgbuild.system import decoding
from imgbuild.values import Sha256

# The lists of `ModuleFacts` whose items have a line, and its place in them.
_LINES = {
    "imports": 0,
    "functions": 1,
    "classes": 1,
    "assigned": 1,
    "calls": 0,
    "attributes": 0,
    "refusals": 0,
    "windows": 0,
}
_FIELDS = 5  # the place of the fields of a class, whose lines are in their place 1
SYMBOL_BITS = 40
SYMBOL_MASK = (1 << SYMBOL_BITS) - 1
METADATA = "metadata"
DEBS = "debs"
# The number is increased by hand when an audit of the same packages looks up other names; then run
# `tools/facts.py --names`.
NAMES = "names-1"
_OCTETS = SYMBOL_BITS // 8
_HEADERS = re.compile(rb"(?:[^\r\n]+(?:\r\n|\r|\n))*")
T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
WheelNumbers = tuple[int, ...]


class FileList(msgspec.Struct, frozen=True, array_like=True):
    """The files in exactly the wheels with these numbers: paths, sizes in bytes, CRCs."""

    wheels: WheelNumbers
    paths: tuple[str, ...]
    sizes: tuple[int, ...]
    crcs: tuple[int, ...]


class InstalledDifference(msgspec.Struct, frozen=True, array_like=True):
    """The differences between the installed files and the members of a wheel.

    The differences apply to installations with one of the arguments `keys`. `added` contains the
    path (as in RECORD), CRC and size of each installed file that is not a member. `absent` lists
    members that are omitted or changed.
    """

    keys: tuple[str, ...]
    added: tuple[tuple[str, int, int], ...]
    absent: tuple[str, ...]


class ElfLists(msgspec.Struct, frozen=True, array_like=True):
    """The shared objects of several files. Symbols refer to the objects by number.

    `files` contains the objects of each file, without symbols, or None if they were not read.
    `undefined` contains names. `defined` contains sorted hashes of `SYMBOL_BITS` bits, stored as
    differences in byte planes.
    """

    files: tuple[tuple[ElfFacts, ...] | None, ...]
    undefined: tuple[tuple[WheelNumbers, tuple[str, ...]], ...]
    defined: tuple[tuple[WheelNumbers, bytes], ...]


class PublishedPackageFacts(msgspec.Struct, frozen=True, array_like=True):
    """The facts about all published wheels of a package. Wheels are referred to by number.

    Each item of the following lists ends with the numbers of the wheels to which it applies. Items
    of `modules` have the name, and facts with relative lines (see `relative_lines`). Items of
    `members` have path and content. Items of `imports` have the module, and the packages in its
    import lines. Items of `mentions` have "PARENT WORD", and the modules below the parent whose
    source contains the word.
    """

    wheels: tuple[Sha256, ...]
    files: tuple[FileList, ...]
    installed: tuple[tuple[InstalledDifference, ...], ...]
    modules: tuple[tuple[str, msgspec.Raw, WheelNumbers], ...]
    members: tuple[tuple[str, bytes, WheelNumbers], ...]
    imports: tuple[tuple[str, tuple[str, ...], WheelNumbers], ...]
    mentions: tuple[tuple[str, tuple[str, ...], WheelNumbers], ...]
    elf_facts: msgspec.Raw


class DebFacts(msgspec.Struct, frozen=True, array_like=True):
    """The libraries of Debian packages, in the order of the packages."""

    debs: tuple[Sha256, ...]
    elf_facts: ElfLists


class PublishedWheelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts about a wheel. A field is None if its facts are unknown.

    `crcs` are the CRCs of the files in `index`. For `installed`, see `InstalledDifference`. For
    `modules`, `imports` and `mentions`, see `PublishedPackageFacts`.
    """

    index: WheelIndex
    crcs: Mapping[str, int]
    installed: tuple[InstalledDifference, ...] = ()
    modules: Mapping[str, msgspec.Raw] = {}
    members: Mapping[str, bytes] = {}
    imports: Mapping[str, tuple[str, ...]] | None = None
    mentions: Mapping[str, tuple[str, ...]] = {}
    elf_facts: tuple[ElfFacts, ...] | None = None

    def module(self, name: str) -> ModuleFacts | None:
        """Return the facts about a module, or None if they are unknown."""
        raw = self.modules.get(name)
        return absolute_lines(raw) if raw is not None else None

    def installed_files(self, key: str) -> tuple[tuple[str, int, int], ...] | None:
        """Return the path, CRC and size of each file that is installed with the arguments `key`.

        The path is written as in RECORD. Returns None if the files are unknown.
        """
        difference = next((each for each in self.installed if key in each.keys), None)
        if difference is None:
            return None
        absent = set(difference.absent)
        members = (
            (path, self.crcs[path], size)
            for path, size in self.index.files.items()
            if path not in absent
        )
        return tuple(sorted((*members, *difference.added)))


class PublishedFacts:
    """The facts in a facts file, decoded one package at a time. Not thread-safe."""

    def __init__(self, file: FactsFile) -> None:
        self._file = file
        self._packages: dict[str, _PackageFacts | None] = {}
        self._debs: Mapping[Sha256, tuple[ElfFacts, ...]] | None = None
        self._names: Mapping[Sha256, tuple[str, ...]] | None = None

    def wheel(self, package: str, sha256: Sha256) -> PublishedWheelFacts | None:
        """Return the facts about a wheel, without its shared objects.

        Return None if the wheel is not published.
        """
        headers = self._file.fact(METADATA, sha256)
        known = self._package(package) if headers is not None else None
        return known.wheel(sha256, headers) if known is not None and headers is not None else None

    def has_wheel(self, sha256: Sha256) -> bool:
        """Whether a wheel is published. The facts of its package are not decompressed."""
        return self._file.fact(METADATA, sha256) is not None

    def version(self, package: str) -> str:
        """Return a text that changes with the facts of a package, or "" if there are none."""
        return self._file.version(f"wheels/{package}")

    def elf_facts(self, package: str, sha256: Sha256) -> tuple[ElfFacts, ...] | None:
        """Return the shared objects of a wheel, or None if unknown."""
        known = self._package(package)
        return known.elf_facts(sha256) if known is not None else None

    def deb_libraries(self, sha256: Sha256) -> tuple[ElfFacts, ...] | None:
        """Return the libraries of a Debian package, or None if unknown."""
        if self._debs is None:
            debs = _decode_entry(self._file.entry(DEBS), DebFacts) or DebFacts(
                (), ElfLists((), (), ())
            )
            pairs = zip(debs.debs, decode_elf_facts(debs.elf_facts), strict=True)
            self._debs = {key: elf_facts for key, elf_facts in pairs if elf_facts is not None}
        return self._debs.get(sha256)

    def names(self, key: Sha256) -> frozenset[str] | None:
        """Return the names that the audit of the package set `key` looks up, or None if unknown.

        The key is a result of `queried.package_set_key`. The audit of a set in the facts file has
        no errors.
        """
        if self._names is None:
            data = self._file.entry(NAMES)
            self._names = _decode_entry(data, dict[Sha256, tuple[str, ...]]) or {}
        names = self._names.get(key)
        return frozenset(names) if names is not None else None

    def _package(self, package: str) -> _PackageFacts | None:
        if package not in self._packages:
            facts = _decode_entry(self._file.entry(f"wheels/{package}"), PublishedPackageFacts)
            self._packages[package] = _PackageFacts(facts) if facts is not None else None
        return self._packages[package]


class _PackageFacts:
    def __init__(self, facts: PublishedPackageFacts) -> None:
        self._facts = facts
        self._numbers = {sha256: number for number, sha256 in enumerate(facts.wheels)}
        self._elf_facts: tuple[tuple[ElfFacts, ...] | None, ...] | None = None

    def wheel(self, sha256: Sha256, headers: bytes) -> PublishedWheelFacts | None:
        number = self._numbers.get(sha256)
        if number is None:
            return None
        facts = self._facts
        files: dict[str, tuple[int, int]] = {}
        for group in facts.files:
            if number in group.wheels:
                values = zip(group.sizes, group.crcs, strict=True)
                files.update(zip(group.paths, values, strict=True))
        imports = {module: names for module, names, has in facts.imports if number in has}
        return PublishedWheelFacts(
            index=WheelIndex(
                files={path: files[path][0] for path in sorted(files)},
                metadata=parse_metadata(headers.decode("utf-8", "replace")),
            ),
            crcs={path: crc for path, (_, crc) in files.items()},
            installed=facts.installed[number],
            modules={module: raw for module, raw, has in facts.modules if number in has},
            members={path: data for path, data, has in facts.members if number in has},
            imports=imports or None,
            mentions={key: names for key, names, has in facts.mentions if number in has},
        )

    def elf_facts(self, sha256: Sha256) -> tuple[ElfFacts, ...] | None:
        number = self._numbers.get(sha256)
        if number is None:
            return None
        if self._elf_facts is None:
            lists = _decode_entry(bytes(self._facts.elf_facts), ElfLists)
            self._elf_facts = (
                decode_elf_facts(lists) if lists is not None else (None,) * len(self._numbers)
            )
        return self._elf_facts[number]


@lru_cache
def published_facts() -> PublishedFacts:
    """Return the facts bundled with imgbuild."""
    return PublishedFacts(installed_facts())


def package_facts(wheels: Mapping[Sha256, PublishedWheelFacts]) -> PublishedPackageFacts:
    """Encode the facts about the wheels of a package for the facts file."""
    hashes = tuple(sorted(wheels))
    ordered = [wheels[sha256] for sha256 in hashes]
    return PublishedPackageFacts(
        wheels=hashes,
        files=_file_lists(ordered),
        installed=tuple(facts.installed for facts in ordered),
        modules=_share_values([facts.modules for facts in ordered]),
        members=_share_values([facts.members for facts in ordered]),
        imports=_share_values([facts.imports or {} for facts in ordered]),
        mentions=_share_values([facts.mentions for facts in ordered]),
        elf_facts=msgspec.Raw(
            msgspec.msgpack.encode(elf_lists([facts.elf_facts for facts in ordered]))
        ),
    )


def _file_lists(wheels: Sequence[PublishedWheelFacts]) -> tuple[FileList, ...]:
    files: dict[tuple[str, int, int], list[int]] = {}
    for number, facts in enumerate(wheels):
        for path, size in facts.index.files.items():
            files.setdefault((path, size, facts.crcs[path]), []).append(number)
    lists = []
    for numbers, group in _group_by_numbers(files):
        paths, sizes, crcs = zip(*sorted(group), strict=True)
        lists.append(FileList(wheels=numbers, paths=paths, sizes=sizes, crcs=crcs))
    return tuple(lists)


def _share_values(wheels: Sequence[Mapping[str, T]]) -> tuple[tuple[str, T, WheelNumbers], ...]:
    shared: dict[tuple[str, bytes], tuple[T, list[int]]] = {}
    for number, values in enumerate(wheels):
        for name, value in values.items():
            encoded = msgspec.msgpack.encode(value)
            shared.setdefault((name, encoded), (value, []))[1].append(number)
    return tuple(
        (name, value, tuple(numbers))
        for (name, _), (value, numbers) in sorted(shared.items(), key=lambda item: item[0])
    )


def elf_lists(files: Sequence[tuple[ElfFacts, ...] | None]) -> ElfLists:
    """Encode shared objects by file for the facts file."""
    undefined: dict[str, list[int]] = {}
    defined: dict[int, list[int]] = {}
    number = 0
    stripped: list[tuple[ElfFacts, ...] | None] = []
    for elf_facts in files:
        for facts in elf_facts or ():
            for name in facts.undefined:
                undefined.setdefault(name, []).append(number)
            for symbol in {symbol & SYMBOL_MASK for symbol in array("Q", facts.defined)}:
                defined.setdefault(symbol, []).append(number)
            number += 1
        stripped.append(
            tuple(msgspec.structs.replace(facts, undefined=(), defined=b"") for facts in elf_facts)
            if elf_facts is not None
            else None
        )
    return ElfLists(
        files=tuple(stripped),
        undefined=tuple((has, tuple(sorted(names))) for has, names in _group_by_numbers(undefined)),
        defined=tuple(
            (has, _planes(sorted(symbols))) for has, symbols in _group_by_numbers(defined)
        ),
    )


def decode_elf_facts(lists: ElfLists) -> tuple[tuple[ElfFacts, ...] | None, ...]:
    """Return the shared objects of each file, with sorted symbols."""
    undefined: dict[int, list[str]] = {}
    defined: dict[int, list[int]] = {}
    for numbers, names in lists.undefined:
        for number in numbers:
            undefined.setdefault(number, []).extend(names)
    for numbers, planes in lists.defined:
        symbols = _symbols(planes)
        for number in numbers:
            defined.setdefault(number, []).extend(symbols)
    count = itertools.count()
    return tuple(
        tuple(
            msgspec.structs.replace(
                facts,
                undefined=tuple(sorted(undefined.get(number, ()))),
                defined=array("Q", sorted(defined.get(number, ()))).tobytes(),
            )
            for facts, number in zip(elf_facts, count)  # noqa: B905 (the numbers go on)
        )
        if elf_facts is not None
        else None
        for elf_facts in lists.files
    )


def relative_lines(module: msgspec.Raw) -> msgspec.Raw:
    """Encode `ModuleFacts` with lines as differences, which do not change if code is moved.

    The first line of each list is relative to 0.
    """
    facts = msgspec.msgpack.decode(module)
    for items, place in _lists(facts):
        lines = [item[place] for item in items]
        for item, line, before in zip(items, lines, (0, *lines), strict=False):
            item[place] = line - before
    return msgspec.Raw(msgspec.msgpack.encode(facts))


def absolute_lines(module: msgspec.Raw) -> ModuleFacts:
    """Decode the facts encoded by `relative_lines`."""
    facts = msgspec.msgpack.decode(module)
    for items, place in _lists(facts):
        for item, line in zip(
            items, itertools.accumulate(item[place] for item in items), strict=True
        ):
            item[place] = line
    return decoding.convert(facts, ModuleFacts)


def _lists(facts: dict[str, Any]) -> Iterator[tuple[list[list[Any]], int]]:
    """Yield the lists of a module's facts whose items have a line.

    The second value is the position of the line in an item.
    """
    for name, place in _LINES.items():
        yield facts.get(name, []), place
    for definition in facts.get("classes", []):
        yield definition[_FIELDS], 1


def metadata_headers(metadata: bytes) -> bytes:
    """Return METADATA up to the end of the headers, without the description."""
    end = _HEADERS.match(metadata)
    return metadata[: end.end()] if end is not None else metadata


def metadata_file(files: Iterable[str]) -> str:
    """Return the path of METADATA among the files of a wheel, or "" if it is missing."""
    return next(filter(is_metadata, files), "")


def _group_by_numbers(items: Mapping[K, Sequence[int]]) -> Iterator[tuple[WheelNumbers, list[K]]]:
    groups: dict[WheelNumbers, list[K]] = {}
    for item, numbers in items.items():
        groups.setdefault(tuple(numbers), []).append(item)
    yield from sorted(groups.items(), key=lambda group: group[0])


def _planes(symbols: Sequence[int]) -> bytes:
    """Encode sorted numbers as differences: all first octets, then all second octets, and so on."""
    before = itertools.chain((0,), symbols)
    octets = b"".join(
        (symbol - last).to_bytes(_OCTETS, "little")
        for symbol, last in zip(symbols, before, strict=False)
    )
    return b"".join(octets[place::_OCTETS] for place in range(_OCTETS))


def _symbols(planes: bytes) -> list[int]:
    count = len(planes) // _OCTETS
    octets = bytearray(8 * count)
    for place in range(_OCTETS):
        octets[place::8] = planes[place * count : (place + 1) * count]
    return list(itertools.accumulate(array("Q", bytes(octets))))


def _decode_entry(data: bytes | None, form: type[T]) -> T | None:
    try:
        return decoding.decode_msgpack(data, form) if data is not None else None
    except msgspec.MsgspecError:
        return None
