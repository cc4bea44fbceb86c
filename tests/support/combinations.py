"""Audits broken combinations of packages, and similar valid combinations, against the real index.

The records are in tests/data/combinations. `audit_all` audits the broken combination and the
neighbour of each record, and compares the findings with the record. Wheels are not downloaded
completely. Range requests read Python code, METADATA, and the compiled members listed in the
record, and only facts about these files are stored.
"""

from __future__ import annotations

import multiprocessing
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Literal

import msgspec
import yaml

from imgbuild.audit import judge
from imgbuild.audit.binaries.elf import read_elf
from imgbuild.audit.judge import AuditTerms
from imgbuild.audit.main_path import closure, corners, policy
from imgbuild.audit.main_path.policy import MainPathEntry
from imgbuild.audit.packages.content import RemoteContent, WheelMember
from imgbuild.audit.packages.library import Library, LibraryWheel
from imgbuild.audit.packages.package_set import PackageSet
from imgbuild.audit.packages.pinned import pick_wheels
from imgbuild.audit.packages.reading import open_content
from imgbuild.audit.source.facts import ElfFacts
from imgbuild.cache.store import Store
from imgbuild.http.client import HttpClient
from imgbuild.index.pages import IndexAddress, IndexLookup
from imgbuild.index.remote_wheel import BlockCache
from imgbuild.lock.resolution import Wheel
from imgbuild.pipeline import audit_lock
from imgbuild.report import ConflictRelation, Finding, Severity
from imgbuild.solve.uv import default_index
from imgbuild.values import Arch, sha256
from imgbuild.wheel.tags import WheelTags
from tests.support import wheels

FOLDER = Path(__file__).parents[1] / "data" / "combinations"
HALVES = ("seen", "held")
SCRIPT = "script"
PIECE = 16 << 20
# These do not follow the code; the others run all checks.
WITHOUT_CODE = ("metadata", "elf", "cuda", "rules")
SEVERITY = {Severity.NOTE: 0, Severity.WARNING: 1, Severity.ERROR: 2}


class ExpectedFinding(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The required parts of a finding: a relation, both packages and part of the subject."""

    relation: tuple[ConflictRelation, ...]
    package: str
    other: str = ""
    subject: str = ""


class Combination(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One record. The header of the data files explains the fields."""

    id: str
    check: Literal["metadata", "elf", "cuda", "imports", "calls", "support", "rules"]
    packages: dict[str, str]
    breaks: ExpectedFinding
    at: tuple[str, ...]
    healthy: dict[str, str | None]
    why: str
    source: str
    python: str = "3.11"
    healthy_python: str | None = None
    arch: Arch = Arch.X86_64
    glibc: str = "2.36"
    cuda: str = ""
    level: Severity = Severity.ERROR
    closed: bool = False
    script: str = ""
    members: dict[str, tuple[str, ...]] = {}
    healthy_members: dict[str, tuple[str, ...]] | None = None

    @property
    def neighbour(self) -> Combination:
        """The valid combination, as a record."""
        changed = {**self.packages, **self.healthy}
        return msgspec.structs.replace(
            self,
            packages={name: version for name, version in changed.items() if version is not None},
            python=self.healthy_python or self.python,
            members=self.members if self.healthy_members is None else self.healthy_members,
        )

    def is_said_by(self, finding: Finding) -> bool:
        """Whether `finding` reports the problem of this record and its location."""
        evidence, fault = finding.evidence, self.breaks
        if evidence is None or SEVERITY[finding.severity] < SEVERITY[self.level]:
            return False
        place = f"{evidence.file}:{evidence.line}" if evidence.line else evidence.file
        text = " ".join((evidence.subject, finding.message, *evidence.symbols))
        return (
            evidence.relation in fault.relation
            and evidence.package == fault.package
            and (not fault.other or evidence.other in (fault.other, ""))
            and fault.subject.lower() in text.lower()
            and any(location in ("", place, evidence.file) for location in self.at)
        )


def load_combinations(half: str) -> tuple[Combination, ...]:
    """The records of one half, in the order of the file."""
    document = yaml.safe_load((FOLDER / f"{half}.yaml").read_text(encoding="utf-8"))
    return tuple(msgspec.convert(document["combinations"], list[Combination]))


def half_of_record(identity: str) -> str:
    """The half of a record, selected by the hash of its ID."""
    return HALVES[int(sha256(identity.encode()), 16) % 2]


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The result of auditing one record: the expected findings and false alarms."""

    record: Combination
    found: tuple[Finding, ...]
    alarms: tuple[Finding, ...]


class Laboratory:
    """Audits package sets without downloading them. Facts are stored in `store`."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.http = HttpClient()
        place = IndexAddress(name="default", address=default_index())
        self.indexes = IndexLookup({place.name: place}, {}, place.name, self.http)

    def outcome(self, record: Combination) -> Outcome:
        """Audit the broken and the valid combination of a record."""
        findings = tuple(filter(record.is_said_by, self.findings(record)))
        healthy = self.findings(record.neighbour)
        alarms = tuple(finding for finding in healthy if finding.severity is Severity.ERROR)
        return Outcome(record=record, found=findings, alarms=alarms)

    def findings(self, record: Combination) -> tuple[Finding, ...]:
        """The findings of an audit of the packages of `record`."""
        machine = WheelTags(python=record.python, glibc=record.glibc, arch=record.arch)
        picked = pick_wheels(record.packages, machine, self.indexes, self.http)
        assert not picked.lacking, f"{record.id}: no wheel of {', '.join(picked.lacking)}"
        with Library(self.store, BlockCache(self.http), processes=1) as library:
            library_wheels = [
                library.wheel(wheel, picked.urls[wheel.sha256]) for wheel in picked.wheels
            ]
            for library_wheel in library_wheels:
                self._read_members(library_wheel, record.members.get(library_wheel.package, ()))
            with self.store.scratch() as folder:
                if record.script:
                    library_wheels.append(library.wheel(*_script(folder, record.script)))
                package_set = PackageSet(
                    library_wheels,
                    library,
                    python=record.python,
                    arch=record.arch,
                    glibc=record.glibc,
                    partial=not record.closed,
                )
                return self._judged(package_set, record, library)

    def _read_members(self, library_wheel: LibraryWheel, members: tuple[str, ...]) -> None:
        """Read only the named shared objects, if the wheel has them."""
        facts_by_file = {facts.file: facts for facts in library_wheel.stored_elf_facts() or ()}
        missing = [
            member
            for member in members
            if member in library_wheel.files and member not in facts_by_file
        ]
        for member in missing:
            facts_by_file[member] = self._read_elf(library_wheel, member)
        if missing or library_wheel.stored_elf_facts() is None:
            library_wheel.keep_elf_facts(tuple(facts_by_file.values()))

    def _read_elf(self, library_wheel: LibraryWheel, file: str) -> ElfFacts:
        local = self.store_of_the_machine.file(library_wheel.wheel.sha256)
        if local is not None:
            opened: Callable[[], Iterator[bytes]] = partial(
                open_content(local, library_wheel.wheel.file).chunks, file
            )
            facts = read_elf(opened, file)
        else:
            content = RemoteContent(str(library_wheel.where), library_wheel.wheel.file, self.http)
            with self.store.scratch() as folder:
                path = folder / "member"
                self._download(str(library_wheel.where), content.members()[file], path)
                facts = read_elf(partial(_inflate_file, path), file)
        assert facts is not None, f"{library_wheel.wheel.file}: {file} is not a shared object"
        return facts

    def _judged(
        self, package_set: PackageSet, record: Combination, library: Library
    ) -> tuple[Finding, ...]:
        if record.check in WITHOUT_CODE:
            return judge.audit_package_set(
                package_set, AuditTerms(cuda=record.cuda), checks=WITHOUT_CODE
            ).findings
        rules = policy.load_policy()
        if record.script:
            entry = MainPathEntry(name=SCRIPT, why="the program that is looked at")
            rules = msgspec.structs.replace(rules, walk=rules.walk | {SCRIPT}, entries=(entry,))
        # Corners hold notes alone: they are looked into where a note is what is expected.
        noted = record.level is Severity.NOTE
        marginal = corners.corner_modules(package_set, rules) if noted else ()
        path = closure.main_path(package_set, rules, marginal)
        assert library.http is not None
        past = audit_lock.removed_attributes_check(
            package_set, lambda: self.indexes, library, library.http, record.packages
        )
        return judge.audit_package_set(
            package_set, AuditTerms(cuda=record.cuda), path=path, past=past
        ).findings

    @property
    def store_of_the_machine(self) -> Store:
        """The user's cache, whose files need not be downloaded."""
        return Store.open()

    def _download(self, url: str, member: WheelMember, path: Path) -> None:
        head = self.http.fetch_part(url, member.start, 30)
        start = member.start + 30 + int.from_bytes(head[26:28], "little")
        start += int.from_bytes(head[28:30], "little")
        with path.open("wb") as sink:
            for offset in range(0, member.compressed, PIECE):
                length = min(PIECE, member.compressed - offset)
                sink.write(self.http.fetch_part(url, start + offset, length))


def _inflate_file(path: Path) -> Iterator[bytes]:
    inflater = zlib.decompressobj(-15)
    with path.open("rb") as source:
        while piece := source.read(1 << 20):
            yield inflater.decompress(piece)
    yield inflater.flush()


def _script(folder: Path, text: str) -> tuple[Wheel, Path]:
    """Write a user's program as a wheel on disk."""
    path = wheels.write_wheel(folder, {f"{SCRIPT}.py": text.encode()}, name=SCRIPT)
    data = path.read_bytes()
    wheel = Wheel(
        package=SCRIPT,
        version="1.0",
        index="here",
        file=path.name,
        size=len(data),
        sha256=sha256(data),
    )
    return wheel, path


def audit_all(
    records: Sequence[Combination], cache: Path, *, processes: int | None = None
) -> dict[str, Outcome]:
    """The outcome of each record, by ID. Facts are stored below `cache`.

    Combinations that share large wheels are audited in one process, one after another.
    """
    groups: dict[tuple[str, ...], list[Combination]] = {}
    for record in records:
        large = sorted(record.members) if record.members else [record.id]
        groups.setdefault(tuple(large), []).append(record)
    largest = sorted(groups.values(), key=len, reverse=True)
    workers = processes or min(4, len(os.sched_getaffinity(0)))
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=spawn) as pool:
        return {
            outcome.record.id: outcome
            for done in pool.map(partial(_group, cache), largest)
            for outcome in done
        }


def _group(cache: Path, records: Sequence[Combination]) -> list[Outcome]:
    laboratory = Laboratory(Store.open(cache))
    return [laboratory.outcome(record) for record in records]
