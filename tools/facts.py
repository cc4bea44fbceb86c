#!/usr/bin/env python3
"""Writes the file of facts about the wheels and Debian packages of published targets.

Reads every wheel and Debian package of the targets. Targets in `AUDITED_TARGETS` are audited like
the lock of an extension, for x86_64 if available. The file includes the modules and sources that
these audits read, and the same modules of other wheels of the same version. `make facts` uses a
separate cache, because the file must depend only on the locks and the code. Wheels that the next
target does not need are removed from the cache. A run requires about 10 GB of disk and 30 GB of
downloads, and can be interrupted and continued.

--small updates only the small facts (`SMALL_FACTS`), which are read with range requests (about 1
GB). --missing adds only wheels and Debian packages that the file lacks, and reads no modules of
these wheels. --modules adds only the modules and sources that audits read from wheels in the file.
--names adds only the names that audits look up. --modules and --names use range requests to read
modules.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import zipfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import msgspec

import looked_up_names
from imgbuild.assemble import folders
from imgbuild.assemble.inputs import Inputs, installation_key
from imgbuild.attest.sbom import packages
from imgbuild.audit import judge
from imgbuild.audit.checks import rules
from imgbuild.audit.judge import CHECKS
from imgbuild.audit.main_path import policy
from imgbuild.audit.main_path.closure import main_path
from imgbuild.audit.main_path.named import add_named_packages
from imgbuild.audit.packages import advised, generated, loaded
from imgbuild.audit.packages.base import read_base, stored_libraries
from imgbuild.audit.packages.library import REMOTE_SUFFIX, Library, LibraryWheel
from imgbuild.audit.packages.package_set import open_package_set
from imgbuild.audit.packages.published import (
    DEBS,
    METADATA,
    NAMES,
    DebFacts,
    InstalledDifference,
    PublishedFacts,
    PublishedPackageFacts,
    PublishedWheelFacts,
    elf_lists,
    metadata_file,
    metadata_headers,
    package_facts,
)
from imgbuild.audit.source.facts import ElfFacts
from imgbuild.cache.facts_file import FactsFile, facts_path, replace_entry, write_facts
from imgbuild.cache.store import Store
from imgbuild.index.remote_wheel import LOCKED_PREFIX, BlockCache
from imgbuild.lock import lock_file
from imgbuild.lock.lock_file import Lock
from imgbuild.lock.resolution import Deb, Wheel, installed_wheels
from imgbuild.pipeline import audit_lock
from imgbuild.pipeline.inputs import open_inputs
from imgbuild.pipeline.session import SessionOptions, open_session
from imgbuild.plan.plan import Layer, WheelsRecipe, base_plan, create_plan, omitted_paths
from imgbuild.system.amounts import size_text
from imgbuild.values import Arch, Sha256, normalize_package
from imgbuild.wheel.record import record_path

LIMIT = 20 << 20  # bytes by which imgbuild's wheel may grow
REMEDY = "make facts"
EXAMPLES = ("cu124-vllm",)  # the target that the pages on extensions use
# The targets whose modules are in the file; those of all targets would be larger than LIMIT.
AUDITED_TARGETS = ("cu124-vllm", "cu124-vllm0.8.5")


# Facts of one wheel each, cached by the type of their reader.
SMALL_FACTS = (generated.KIND, loaded.KIND, advised.KIND)


class FactsReader:
    """Collects the facts of the file."""

    def __init__(self) -> None:
        self.wheels: dict[str, dict[Sha256, PublishedWheelFacts]] = {}
        self.audited: dict[tuple[str, str], PublishedWheelFacts] = {}  # by package and version
        self.headers: dict[Sha256, bytes] = {}
        self.debs: dict[Sha256, tuple[ElfFacts, ...]] = {}
        self.bases: dict[str, bytes] = {}
        self.records: dict[Sha256, bytes] = {}
        self.small: dict[str, dict[Sha256, bytes]] = {kind: {} for kind in SMALL_FACTS}

    def add_small(self, library_wheel: LibraryWheel, named: Collection[str], store: Store) -> None:
        """Read the small facts of a wheel, and its advised extras if `named` has the package."""
        key = library_wheel.wheel.sha256
        _ = library_wheel.generated_code, library_wheel.loaded
        if library_wheel.package in named:
            _ = library_wheel.advised_extras
        for kind, small in self.small.items():
            data = store.fact(kind, key) or store.fact(kind + REMOTE_SUFFIX, key)
            if data is not None:
                small[key] = data

    def add_wheel(self, wheel: Wheel, facts: PublishedWheelFacts, metadata: bytes) -> None:
        """Add the facts about a wheel, merged with those from another target's audit."""
        package = self.wheels.setdefault(normalize_package(wheel.package), {})
        before = package.get(wheel.sha256, facts)
        package[wheel.sha256] = msgspec.structs.replace(
            facts,
            modules={**before.modules, **facts.modules},
            members={**before.members, **facts.members},
            mentions={**before.mentions, **facts.mentions},
            imports=facts.imports or before.imports,
            installed=_merge_differences((*before.installed, *facts.installed)),
        )
        self.headers[wheel.sha256] = metadata_headers(metadata)
        if package[wheel.sha256].modules:
            self.audited.setdefault((wheel.package, wheel.version), package[wheel.sha256])

    def add_debs(self, debs: Sequence[Deb], inputs: Inputs) -> None:
        """Add the libraries and the records for SBOMs of `debs`, which are in the cache."""
        read_base(debs, lambda deb: Path(inputs.store.file(deb.sha256) or ""), inputs.store)
        self.debs |= {deb.sha256: stored_libraries(deb, inputs.store) or () for deb in debs}
        records = packages.look_up_packages(((deb.sha256, deb) for deb in debs), inputs.store)
        self.records |= {key: msgspec.json.encode(record) for key, record in records.items()}

    def add_base(self, layers: Sequence[Layer], inputs: Inputs) -> None:
        """Add the paths of a base whose Debian packages are in the cache."""
        key = folders.base_key(layers)
        if key not in self.bases:
            self.bases[key] = folders.published_paths(layers, inputs.store)

    def entries(self) -> dict[str, bytes]:
        """Return the contents of the file's entries, by name."""
        encode = msgspec.msgpack.encode
        hashes = sorted(self.debs)
        return {
            **{f"wheels/{name}": encode(package_facts(wheels))
               for name, wheels in self.wheels.items()},
            **{kind: encode(dict(sorted(small.items()))) for kind, small in self.small.items()},
            packages.FACT: encode(dict(sorted(self.records.items()))),
            folders.FACT: encode(dict(sorted(self.bases.items()))),
            METADATA: encode(dict(sorted(self.headers.items()))),
            DEBS: encode(DebFacts(tuple(hashes), elf_lists([self.debs[key] for key in hashes]))),
        }  # fmt: skip


def _merge_differences(
    differences: Sequence[InstalledDifference],
) -> tuple[InstalledDifference, ...]:
    merged: dict[InstalledDifference, set[str]] = {}
    for difference in differences:
        keyless = msgspec.structs.replace(difference, keys=())
        merged.setdefault(keyless, set()).update(difference.keys)
    return tuple(
        msgspec.structs.replace(keyless, keys=tuple(sorted(keys)))
        for keyless, keys in merged.items()
    )


def chosen_locks(names: Sequence[str]) -> list[Lock]:
    """Return the locks of the targets `names`.

    The default is the recommended targets and the example.
    """
    session = open_session(None, SessionOptions())
    targets = session.matrix.targets.items()
    recommended = [name for name, target in targets if target.recommended]
    return [lock_file.read_lock(session.project.images, name)
            for name in names or (*EXAMPLES, *recommended)]  # fmt: skip


def ordered_arches(lock: Lock) -> list[Arch]:
    """Return the architectures of `lock`, x86_64 first."""
    return sorted(lock.arch, key=lambda arch: arch is not Arch.X86_64)


def read_targets(locks: Sequence[Lock], audited: Collection[str]) -> FactsReader:
    """Return the facts about the wheels and Debian packages of `locks`.

    The targets in `audited` are audited to determine which modules to read.
    """
    session = open_session(None, SessionOptions())
    facts = FactsReader()
    parts = [(lock, arch) for lock in locks for arch in ordered_arches(lock)]
    for (lock, arch), following in itertools.zip_longest(parts, parts[1:]):
        inputs = open_inputs(session)
        wheels = {wheel.sha256: wheel for wheel in installed_wheels(lock.arch[arch])}
        inputs.fetch_missing(lock, wheels)
        if lock.target in audited and arch == ordered_arches(lock)[0]:
            audit_like_extension(lock, arch, wheels, inputs)
        else:
            read_twins(wheels, inputs, facts)
        read_objects(wheels, inputs)
        read_wheels(lock, arch, wheels, inputs, facts)
        inputs.fetch_missing(lock, [deb.sha256 for deb in lock.arch[arch].debs])
        facts.add_debs(lock.arch[arch].debs, inputs)
        facts.add_base(base_plan(create_plan(lock, arch)).layers, inputs)
        needed = {wheel.sha256 for wheel in installed_wheels(following[0].arch[following[1]])
                  } if following else set[Sha256]()  # fmt: skip
        for key in wheels.keys() - needed:
            inputs.store.drop_file(key)
        inputs.store.release()
    return facts


def audit_like_extension(
    lock: Lock, arch: Arch, wheels: Mapping[Sha256, Wheel], inputs: Inputs
) -> None:
    """Audit the main path of `lock` as if it were an extension, without rare branches.

    The facts are cached. The pinned packages are audited like packages that an extension adds.
    """
    resolution = lock.arch[arch]
    supply = audit_lock.LockFiles(lock, inputs)
    ranges = audit_lock.LockedRanges(lock, wheels, inputs, supply)
    with Library(inputs.store, BlockCache(ranges), ahead=False) as library:
        package_set = open_package_set(
            tuple(wheels.values()),
            library,
            python=lock.base.python,
            arch=arch,
            glibc=lock.base.glibc,
            locate=lambda wheel: (
                inputs.store.file(wheel.sha256) or f"{LOCKED_PREFIX}{wheel.sha256}"
            ),
            omit=omitted_paths(lock.drop, wheels.values()),
        )
        terms = audit_lock.audit_terms(lock, inputs.matrix)
        judge.audit_package_set(
            package_set,
            terms,
            path=main_path(package_set, add_named_packages(package_set, terms.named)),
            past=audit_lock.removed_attributes_check(
                package_set, ranges.indexes, library, inputs.context.http, resolution.versions
            ),
            checks=[check for check in CHECKS if check != "elf"],
        )
        for package in policy.load_policy().walk & package_set.wheels.keys():
            _ = package_set.wheels[package].imports


def read_objects(wheels: Mapping[Sha256, Wheel], inputs: Inputs) -> None:
    """Read the shared objects of `wheels`."""
    with Library(inputs.store, ahead=False) as library:
        library.prefetch_elf_facts(
            [library.wheel(wheel, inputs.store.file(key) or "") for key, wheel in wheels.items()]
        )


def read_twins(wheels: Mapping[Sha256, Wheel], inputs: Inputs, facts: FactsReader) -> None:
    """Read from `wheels` the modules that an audit read from other wheels of the same versions."""
    with Library(inputs.store, ahead=False) as library:
        for key, wheel in wheels.items():
            twin = facts.audited.get((wheel.package, wheel.version))
            if twin is not None and key not in facts.headers:
                path = inputs.store.file(key) or Path(wheel.file)
                read_as_twin(library.wheel(wheel, path), twin, library)


def read_as_twin(library_wheel: LibraryWheel, twin: PublishedWheelFacts, library: Library) -> None:
    """Read the same kinds of facts as in `twin`, which is about another wheel.

    Facts about modules with the same bytes are copied from `twin`.
    """
    members = library_wheel.content.members()
    same = {path for path, crc in twin.crcs.items() if path in members and members[path].crc == crc}
    modules = [name for name in twin.modules if name in library_wheel.sources]
    unchanged = {name: twin.module(name) for name in modules if library_wheel.sources[name] in same}
    library_wheel.add_facts(
        {name: module for name, module in unchanged.items() if module is not None}
    )
    library.prefetch({library_wheel: modules})
    library_wheel.read(twin.members)
    for key in twin.mentions:
        library_wheel.mentioning(*key.split(" ", 1))
    if twin.imports is not None:
        _ = library_wheel.imports


def shown_files() -> set[str]:
    """Return the files to store with comments, because a rule can search for a comment."""
    return {rule.shown.file for rule in rules.load_rules()}


def read_wheels(
    lock: Lock, arch: Arch, wheels: Mapping[Sha256, Wheel], inputs: Inputs, facts: FactsReader
) -> None:
    """Add the facts about `wheels`, which were audited for `arch`, to `facts`."""
    layers = create_plan(lock, arch).layers
    tables = inputs.file_tables(lock, layers)
    installations = {
        wheel.sha256: installation_key(layer.recipe, wheel)
        for layer in layers
        if isinstance(layer.recipe, WheelsRecipe)
        for wheel in layer.recipe.wheels
    }
    shown = shown_files()
    named = audit_lock.audit_terms(lock, inputs.matrix).named
    with Library(inputs.store) as library:
        for key, wheel in wheels.items():
            library_wheel = library.wheel(wheel, inputs.store.file(key) or Path(wheel.file))
            stored = library_wheel.stored_facts(shown)
            members = {(path, stored.crcs[path], size) for path, size in stored.index.files.items()}
            folder = f"lib/python{lock.base.python}/site-packages"
            installed = {
                (record_path(file.path, folder), file.crc, file.size)
                for file in tables[wheel.package]
            }
            difference = InstalledDifference(
                keys=(installations[key],),
                added=tuple(sorted(installed - members)),
                absent=tuple(sorted(path for path, *_ in members - installed)),
            )
            name = metadata_file(stored.index.files)
            metadata = library_wheel.content.read([name])[name]
            facts.add_small(library_wheel, named, inputs.store)
            facts.add_wheel(
                wheel, msgspec.structs.replace(stored, installed=(difference,)), metadata
            )


def read_small(locks: Sequence[Lock], path: Path) -> dict[str, bytes]:
    """Return the entries of the file at `path`, with the small facts of the wheels of `locks`."""
    session = open_session(None, SessionOptions())
    facts = FactsReader()
    for lock in locks:
        for arch in ordered_arches(lock):
            inputs = open_inputs(session)
            wheels = {wheel.sha256: wheel for wheel in installed_wheels(lock.arch[arch])}
            supply = audit_lock.LockFiles(lock, inputs)
            ranges = audit_lock.LockedRanges(lock, wheels, inputs, supply)
            named = audit_lock.audit_terms(lock, inputs.matrix).named
            with Library(inputs.store, BlockCache(ranges)) as library:
                for key, wheel in wheels.items():
                    place = inputs.store.file(key) or f"{LOCKED_PREFIX}{key}"
                    facts.add_small(library.wheel(wheel, place), named, inputs.store)
            print(f"{lock.target} {arch}: {len(wheels)} wheels", flush=True)
    return read_entries(path) | {kind: facts.entries()[kind] for kind in SMALL_FACTS}


def add_names(locks: Sequence[Lock], path: Path) -> None:
    """Add the names that the audits of `locks` look up to the file at `path`."""
    session = open_session(None, SessionOptions())
    before = FactsFile.open(path).entry(NAMES) or msgspec.msgpack.encode({})
    sets = msgspec.msgpack.decode(before, type=dict[Sha256, tuple[str, ...]])
    for lock in locks:
        key, names = looked_up_names.names_looked_up(
            lock, ordered_arches(lock)[0], open_inputs(session)
        )
        sets[key] = names
        replace_entry(path, NAMES, msgspec.msgpack.encode(dict(sorted(sets.items()))))
        print(f"{lock.target}: {len(names)} names", flush=True)


def add_modules(locks: Sequence[Lock], path: Path) -> dict[str, bytes]:
    """Return the entries of the file at `path`, with the modules that audits of `locks` read.

    The cache must not contain modules from other audits.
    """
    session = open_session(None, SessionOptions())
    before = FactsFile.open(path)
    published = PublishedFacts(before)
    facts = FactsReader()
    shown = shown_files()
    for lock in locks:
        arch, inputs = ordered_arches(lock)[0], open_inputs(session)
        wheels = {wheel.sha256: wheel for wheel in installed_wheels(lock.arch[arch])}
        audit_like_extension(lock, arch, wheels, inputs)
        ranges = audit_lock.LockedRanges(lock, wheels, inputs, audit_lock.LockFiles(lock, inputs))
        with Library(inputs.store, BlockCache(ranges)) as library:
            for key, wheel in wheels.items():
                package = normalize_package(wheel.package)
                known = published.wheel(package, key)
                if known is None:
                    continue
                place = inputs.store.file(key) or f"{LOCKED_PREFIX}{key}"
                stored = library.wheel(wheel, place).stored_facts(shown)
                elf_facts = published.elf_facts(package, key)
                earlier = facts.wheels.setdefault(package, {}).get(key, known)
                facts.wheels[package][key] = msgspec.structs.replace(
                    known,
                    modules={**earlier.modules, **stored.modules},
                    members={**earlier.members, **stored.members},
                    mentions={**earlier.mentions, **stored.mentions},
                    imports=stored.imports or earlier.imports,
                    elf_facts=elf_facts,
                )
    return merged_entries(read_entries(path), published, facts)


def read_entries(path: Path) -> dict[str, bytes]:
    """Return the contents of the entries in the file at `path`, by name."""
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
    file = FactsFile.open(path)
    return {name: file.entry(name) or b"" for name in names}


def add_missing(locks: Sequence[Lock], path: Path) -> dict[str, bytes]:
    """Return the entries of the file at `path`, with missing wheels, packages and bases added."""
    session = open_session(None, SessionOptions())
    before = FactsFile.open(path)
    published = PublishedFacts(before)
    facts = FactsReader()
    for lock in locks:
        for arch in ordered_arches(lock):
            inputs = open_inputs(session)
            wheels = {
                wheel.sha256: wheel
                for wheel in installed_wheels(lock.arch[arch])
                if published.wheel(normalize_package(wheel.package), wheel.sha256) is None
            }
            debs = [
                deb for deb in lock.arch[arch].debs if published.deb_libraries(deb.sha256) is None
            ]
            if wheels:
                inputs.fetch_missing(lock, wheels)
                read_twins(wheels, inputs, facts)
                read_objects(wheels, inputs)
                read_wheels(lock, arch, wheels, inputs, facts)
            if debs:
                inputs.fetch_missing(lock, [deb.sha256 for deb in lock.arch[arch].debs])
                facts.add_debs(debs, inputs)
                facts.add_base(base_plan(create_plan(lock, arch)).layers, inputs)
            inputs.store.release()
    return merged_entries(read_entries(path), published, facts)


def merged_entries(
    entries: Mapping[str, bytes], published: PublishedFacts, facts: FactsReader
) -> dict[str, bytes]:
    """Add `facts` to `entries`. `published` contains the facts in `entries`."""
    decode = msgspec.msgpack.decode
    for package, wheels in facts.wheels.items():
        data = entries.get(f"wheels/{package}")
        for key in decode(data, type=PublishedPackageFacts).wheels if data else ():
            wheel_facts = published.wheel(package, key) if key not in wheels else None
            if wheel_facts is not None:
                elf_facts = published.elf_facts(package, key)
                wheels[key] = msgspec.structs.replace(wheel_facts, elf_facts=elf_facts)
    debs = decode(entries[DEBS], type=DebFacts)
    for key in debs.debs:
        facts.debs.setdefault(key, published.deb_libraries(key) or ())
    maps = {
        packages.FACT: facts.records,
        folders.FACT: facts.bases,
        METADATA: facts.headers,
        **facts.small,
    }
    for kind, added in maps.items():
        for key, value in decode(entries[kind], type=dict[str, bytes]).items():
            added.setdefault(key, value)
    return {**entries, **facts.entries()}


def find_missing(path: Path, locks: Sequence[Lock]) -> list[str]:
    """Return a line for each wheel of `locks` that is missing from the file at `path`."""
    file = FactsFile.open(path)
    facts = PublishedFacts(file)
    return [
        f"{lock.target}: {wheel.file}"
        for lock in locks
        for resolution in lock.arch.values()
        for wheel in installed_wheels(resolution)
        if facts.wheel(normalize_package(wheel.package), wheel.sha256) is None
    ]


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "target",
        nargs="*",
        help="targets to read (default: the recommended targets and the example)",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=facts_path(),
        help="file to write (default: the file in the package's data)",
    )
    parser.add_argument(
        "--check", action="store_true", help="only check that the file has all wheels"
    )
    parser.add_argument(
        "--small", action="store_true", help="only update the small facts, with range requests"
    )
    parser.add_argument(
        "--missing",
        action="store_true",
        help="only add missing wheels and Debian packages; read no modules",
    )
    parser.add_argument(
        "--modules",
        action="store_true",
        help="only add the modules that audits read",
    )
    parser.add_argument(
        "--names", action="store_true", help="only add the names that audits of targets look up"
    )
    options = parser.parse_args()
    path: Path = options.output
    locks = chosen_locks(options.target)
    if options.check:
        lacking = find_missing(path, locks)
        for line in lacking:
            print(f"{path} lacks {line}; run: {REMEDY}", file=sys.stderr)
        return 4 if lacking else 0
    if options.names:
        add_names(locks, path)
        return 0
    parts = {"small": read_small, "missing": add_missing, "modules": add_modules}
    for name, read in parts.items():
        if getattr(options, name):
            write_facts(path, read(locks, path))
            return 0
    facts = read_targets(locks, options.target or AUDITED_TARGETS)
    write_facts(path, facts.entries())
    size = path.stat().st_size
    print(f"{path}: {len(facts.headers)} wheels, {len(facts.debs)} packages, {size_text(size)}")
    if size > LIMIT:
        print(f"{path} is larger than {size_text(LIMIT)}", file=sys.stderr)
        return 4
    return 0


if __name__ == "__main__":
    sys.exit(main())
