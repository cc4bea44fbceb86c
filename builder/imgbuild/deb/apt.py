"""Reads signed indexes of Debian's archive, resolves packages, and finds updates.

Debian's archive keyring signs `InRelease`. `InRelease` contains the hash of `Packages.xz`, and
`Packages.xz` contains the hash of each package.

The archive keeps the files of a point release until the next point release, and the files of the
last point release permanently. The security suite, which is only used for a base with `security`,
removes superseded files. Locked files are then available only in a dated snapshot or on a private
mirror.
"""

from __future__ import annotations

import difflib
import io
import lzma
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from email.utils import parsedate_to_datetime
from functools import cache
from itertools import chain
from pathlib import Path

import msgspec

from imgbuild.cache.context import Context
from imgbuild.cache.store import Store
from imgbuild.deb.closure import DebianArchive, resolve_dependencies
from imgbuild.deb.control import parse_fields, parse_paragraphs
from imgbuild.deb.debian_version import compare_versions
from imgbuild.errors import FetchFailed, IntegrityError, ToolMissing
from imgbuild.lock.resolution import Deb
from imgbuild.matrix.model import DebianBase
from imgbuild.system import decoding, process
from imgbuild.system.boundary import convert_read_errors
from imgbuild.system.code_digest import code_digest
from imgbuild.values import Arch, sha256

KEYRINGS = (
    Path("/usr/share/keyrings/debian-archive-keyring.gpg"),
    Path("/usr/share/keyrings/debian-archive-keyring.pgp"),
)
# Only these fields of an index are kept in memory, because it has 60,000 packages.
USED_FIELDS = frozenset(
    (
        *("Package", "Version", "Architecture", "Filename", "Size", "SHA256"),
        *("Essential", "Priority", "Provides", "Depends", "Pre-Depends", "Conflicts", "Breaks"),
    )
)
RESOLVED_FACT = "debian-packages-1"  # the packages of a base
INDEX_FACT = (
    "debian-index-1"  # increase the number when `USED_FIELDS` or the parsing of an index changes
)
NAMES = "debian-names-1"  # increase the number when `NAME` changes
NAMES_CHUNK = 1 << 20  # bytes of an index that are unpacked at a time
NAME = re.compile(rb"^Package:[ \t]*(.*)$", re.MULTILINE)
IndexReader = Callable[[str, str, Context], list[dict[str, str]]]  # of URL and SHA-256
REMEDY = "apt-get install gpgv debian-archive-keyring"
# Names of suites that are other ones after each release of Debian.
RELEASE_CLASSES = (*("stable", "oldstable", "oldoldstable", "testing", "unstable", "experimental"),)
SECURITY_FILES = "pool/updates/"  # where the security archive stores its files


class Suite(msgspec.Struct, frozen=True):
    """A suite by code name, with the archives to try for it, in order."""

    name: str
    mirrors: tuple[str, ...]


class SuiteIndex(msgspec.Struct, frozen=True):
    """The packages of a suite, and the date of its release file ("2026-11-22").

    `files` are the hashes of the suite's `Packages` files.
    """

    packages: list[dict[str, str]]
    date: str
    files: tuple[str, ...]


class ResolvedDebs(msgspec.Struct, frozen=True):
    """Resolved packages, sorted by name.

    `security` is the date of the security suite, or None if this suite is not used. `tools` are the
    names of packages that only the base's tools need.
    """

    debs: tuple[Deb, ...]
    security: str | None
    tools: tuple[str, ...]


class SecurityUpdate(msgspec.Struct, frozen=True):
    """A locked package that has a newer version, `fixed`, in the Debian archive."""

    package: str
    version: str
    fixed: str


def resolve_debs(base: DebianBase, arch: Arch, context: Context) -> ResolvedDebs:
    """Resolve the packages and tools of `base`, with all dependencies, for `arch`.

    Raises FetchFailed if no mirror has the suite, IntegrityError if a signature or hash is wrong,
    ToolMissing if gpgv or Debian's keyring is not installed, InputError for an unknown package, and
    NoSolution if a dependency cannot be satisfied.
    """
    stored = context.store.fact(
        RESOLVED_FACT, _resolution_key(base, _suites(base, arch, context, read=_read_nothing))
    )
    if stored is not None:
        return decoding.decode_msgpack(stored, ResolvedDebs)
    indexes = _suites(base, arch, context)
    archive = DebianArchive(chain.from_iterable(index.packages for index in indexes))
    chosen = resolve_dependencies(archive, base.packages, file="matrix.yaml")
    names = {package["Package"] for package in chosen}
    if base.tools:
        chosen = resolve_dependencies(archive, base.tools, file="matrix.yaml", have=tuple(names))
    debs = _debs(chosen)
    tools = tuple(deb.package for deb in debs if deb.package not in names)
    security = indexes[-1].date if base.security is not None else None
    resolved = ResolvedDebs(debs=debs, security=security, tools=tools)
    context.store.put_fact(
        RESOLVED_FACT, _resolution_key(base, indexes), msgspec.msgpack.encode(resolved)
    )
    return resolved


def _resolution_key(base: DebianBase, indexes: Sequence[SuiteIndex]) -> str:
    """Return a hash of all inputs of the resolution: indexes, requested names, and code."""
    code = code_digest("imgbuild.deb.closure", "imgbuild.lock.resolution", alone=__name__)
    parts = (code, base.packages, base.tools, *((index.date, index.files) for index in indexes))
    return sha256(msgspec.json.encode(parts))


def unknown_packages(
    base: DebianBase, arch: Arch, names: Iterable[str], context: Context
) -> dict[str, str]:
    """Map each of `names` that the suite of `base` lacks to a similar name, or to "".

    A similar name starts with the same two letters. Raises the same errors as `resolve_debs`.
    """
    packages = {
        package["Package"]
        for index in _suites(base, arch, context, read=_read_package_names)
        for package in index.packages
    }
    similar: dict[str, str] = {}
    for name in names:
        if name not in packages:
            near = [package for package in packages if package[:2] == name[:2]]
            similar[name] = next(iter(difflib.get_close_matches(name, near, n=1, cutoff=0.75)), "")
    return similar


def security_updates(
    base: DebianBase, debs: Iterable[Deb], arch: Arch, context: Context
) -> tuple[str, tuple[SecurityUpdate, ...]]:
    """Return the date of the security suite, and its packages that are newer than `debs`.

    The security suite of `base` is read even if the base does not use it. Raises the same errors as
    `resolve_debs`.
    """
    index = _suite_index(_security_suite(base), base, arch, context)
    return index.date, _newer_versions(index, debs)


def archive_updates(
    base: DebianBase, debs: Iterable[Deb], arch: Arch, context: Context
) -> tuple[SecurityUpdate, ...]:
    """Return the packages in the suite of `base` that are newer than `debs`, sorted by name.

    Newer packages exist only after a point release. Raises the same errors as `resolve_debs`.
    """
    index = _suite_index(Suite(base.suite, archive_mirrors(base)), base, arch, context)
    return _newer_versions(index, debs)


def _newer_versions(index: SuiteIndex, debs: Iterable[Deb]) -> tuple[SecurityUpdate, ...]:
    locked = tuple(debs)
    names = {deb.package for deb in locked}
    newest = DebianArchive(each for each in index.packages if each["Package"] in names).packages
    updates = (
        SecurityUpdate(deb.package, deb.version, candidate["Version"])
        for deb in locked
        if (candidate := newest.get(deb.package)) is not None
        and compare_versions(deb.version, candidate["Version"]) < 0
    )
    return tuple(sorted(updates, key=lambda update: update.package))


def added_debs(
    base: DebianBase,
    arch: Arch,
    have: Sequence[Deb],
    requested: Sequence[str],
    control: Callable[[Deb], dict[str, str]],
    context: Context,
) -> tuple[Deb, ...]:
    """Return the packages that `requested` needs in addition to `have`, sorted by name.

    Versions of present packages do not change. `control` reads the control fields of a present
    package if the archive has a different version. Raises the same errors as `resolve_debs`.
    """
    listed = _listed_packages(base, arch, context)
    newest = DebianArchive(listed).packages
    installed = {
        deb.package: candidate
        if (candidate := newest.get(deb.package)) is not None
        and candidate["Version"] == deb.version
        else _used_fields(control(deb))
        for deb in have
    }
    rest = (package for package in listed if package["Package"] not in installed)
    archive = DebianArchive((*installed.values(), *rest))
    chosen = resolve_dependencies(archive, requested, file="matrix.yaml", have=tuple(installed))
    return _debs([package for package in chosen if package["Package"] not in installed])


def _debs(chosen: Iterable[Mapping[str, str]]) -> tuple[Deb, ...]:
    return tuple(
        Deb(
            file=package["Filename"].removeprefix("./"),
            size=int(package["Size"]),
            sha256=package["SHA256"],
            package=package["Package"],
            version=package["Version"],
            arch=package["Architecture"],
        )
        for package in chosen
    )


def _listed_packages(base: DebianBase, arch: Arch, context: Context) -> list[dict[str, str]]:
    return [package for index in _suites(base, arch, context) for package in index.packages]


def _suites(
    base: DebianBase, arch: Arch, context: Context, *, read: IndexReader | None = None
) -> list[SuiteIndex]:
    suites = [Suite(base.suite, archive_mirrors(base))]
    if base.security is not None:
        suites.append(_security_suite(base))
    return [_suite_index(suite, base, arch, context, read=read) for suite in suites]


def _suite_index(
    suite: Suite, base: DebianBase, arch: Arch, context: Context, *, read: IndexReader | None = None
) -> SuiteIndex:
    if not suite.mirrors:
        message = f"no Debian mirror is known for {suite.name}"
        hint = "add a mirror to the base in matrix.yaml, such as a dated snapshot"
        raise FetchFailed(message, hint=hint)
    failures = []
    for mirror in suite.mirrors:
        try:
            with convert_read_errors(mirror, hint="try another mirror"):
                return _indexes(suite.name, base.components, arch, mirror, context, read or _index)
        except FetchFailed as error:
            context.reporter.detail(f"{mirror}: {error.message}")
            failures.append(f"{mirror}: {error.message}")
    message = f"no mirror responded for Debian {suite.name}:\n" + "\n".join(failures)
    raise FetchFailed(
        message,
        hint="check the network and the proxy, or add a mirror to matrix.yaml",
    )


def archive_mirrors(base: DebianBase) -> tuple[str, ...]:
    """Return the archives to try, in order: this machine's apt mirrors, then those of `base`."""
    return _sites(base.suite, "/debian", base.mirrors)


def _security_suite(base: DebianBase) -> Suite:
    name = f"{base.suite}-security"
    return Suite(name, _sites(name, "/debian-security", base.security or ()))


def deb_urls(deb: Deb, base: DebianBase) -> list[str]:
    """Return the URLs at which `deb` can exist, one for each mirror."""
    security = deb.file.startswith(SECURITY_FILES)
    places = _security_suite(base).mirrors if security else archive_mirrors(base)
    return [f"{mirror}/{deb.file}" for mirror in places]


def _used_fields(paragraph: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in paragraph.items() if name in USED_FIELDS}


def _sites(suite: str, ending: str, base_sites: Iterable[str]) -> tuple[str, ...]:
    """Return apt's sites of `suite`, its other sites that end in `ending`, and `base_sites`."""
    sites = _apt_sites()
    same = [site for codename, site in sites if codename == suite]
    # A machine with a different release may still have a mirror of the whole archive.
    other = [site for codename, site in sites if codename != suite and site.endswith(ending)]
    return tuple(dict.fromkeys((*same, *other, *(site.rstrip("/") for site in base_sites))))


@cache
def _apt_sites() -> tuple[tuple[str, str], ...]:
    """Return the code name and the site of each package index that this machine's apt uses."""
    try:
        apt = process.find_program("apt-get", remedy="")
    except ToolMissing:
        return ()  # not a Debian machine: use the mirrors of the base
    # Without downloaded lists: where apt keeps no cache of them, it parses them for half a second.
    rows = _index_targets(
        [apt, "-o", "Dir::State::lists=/nonexistent/"], "$(RELEASE)", "--no-release-info"
    )
    if any(release.partition("-")[0] in RELEASE_CLASSES for release, _ in rows):
        return _index_targets([apt], "$(CODENAME)")  # which the lists have
    return rows


def _index_targets(apt: Sequence[str], suite: str, *options: str) -> tuple[tuple[str, str], ...]:
    """Return the field `suite` and the site of each package index of apt, without duplicates."""
    form = f"$(CREATED_BY) {suite} $(SITE)"
    result = process.run_command([*apt, "indextargets", *options, "--format", form], check=False)
    rows = [line.split() for line in result.stdout.splitlines()]
    sites = (
        (name, site.rstrip("/"))
        for kind, name, site in (row for row in rows if len(row) == 3)
        if kind == "Packages" and site.startswith(("http://", "https://"))
    )
    return tuple(dict.fromkeys(sites))


def _indexes(
    suite: str,
    components: Sequence[str],
    arch: Arch,
    mirror: str,
    context: Context,
    read: IndexReader,
) -> SuiteIndex:
    place = f"{mirror}/dists/{suite}"
    release = _verified_release(
        context.http.fetch_bytes(f"{place}/InRelease"), f"{place}/InRelease", context.store
    )
    if suite not in (release.get("Codename"), release.get("Suite")):
        message = f"{place}/InRelease is signed for {release.get('Codename')}, not for {suite}"
        raise IntegrityError(
            message,
            hint="try another mirror, because this one is misconfigured or was tampered with",
        )
    hashes = {}
    for line in release.get("SHA256", "").splitlines():
        parts = line.split()
        if len(parts) == 3:
            hashes[parts[2]] = parts[0]
    packages: list[dict[str, str]] = []
    files = []
    for component in components:
        name = f"{component}/binary-{arch.debian}/Packages.xz"
        if name not in hashes:
            message = f"{place}/InRelease does not list {name}"
            raise IntegrityError(message, hint="check `components` of the base in matrix.yaml")
        files.append(hashes[name])
        packages += read(f"{place}/{name}", hashes[name], context)
    try:
        date = parsedate_to_datetime(release.get("Date", "")).date().isoformat()
    except ValueError as error:
        message = f"{place}/InRelease has no valid date: {release.get('Date')!r}"
        raise IntegrityError(message, hint="try another mirror") from error
    return SuiteIndex(packages, date, tuple(files))


def _index(url: str, digest: str, context: Context) -> list[dict[str, str]]:
    store = context.store
    if (parsed := store.fact(INDEX_FACT, digest)) is not None:
        return decoding.decode_msgpack(parsed, list[dict[str, str]])
    listed = [
        _used_fields(paragraph) for paragraph in parse_paragraphs(_text(url, digest, context))
    ]
    store.put_fact(INDEX_FACT, digest, msgspec.msgpack.encode(listed))
    return listed


def _read_package_names(url: str, digest: str, context: Context) -> list[dict[str, str]]:
    store = context.store
    stored = store.fact(NAMES, digest)
    names = stored.decode().splitlines() if stored is not None else []
    if stored is None:
        last = b""
        with lzma.open(io.BytesIO(_packed_index(url, digest, context))) as unpacked:
            while part := unpacked.read(NAMES_CHUNK):
                lines, _, last = (last + part).rpartition(b"\n")
                names += [name.decode() for name in NAME.findall(lines)]
        names += [name.decode() for name in NAME.findall(last)]
        store.put_fact(NAMES, digest, "\n".join(names).encode())
    return [{"Package": name} for name in names]


def _read_nothing(url: str, digest: str, context: Context) -> list[dict[str, str]]:
    del url, digest, context
    return []


def _text(url: str, digest: str, context: Context) -> str:
    return lzma.decompress(_packed_index(url, digest, context)).decode()


def _packed_index(url: str, digest: str, context: Context) -> bytes:
    store, http = context.store, context.http
    cached = store.file(digest)
    if cached is not None:
        data = cached.read_bytes()
    else:
        data = http.fetch_bytes(url)
        if sha256(data) != digest:
            # During a point release a mirror may have the new index with the old InRelease.
            folder = url.rpartition("/")[0]
            data = http.fetch_bytes(f"{folder}/by-hash/SHA256/{digest}")
    if sha256(data) != digest:
        message = f"{url}: sha256 {sha256(data)}, but InRelease lists {digest}"
        raise IntegrityError(
            message, hint="try again in an hour, because the mirror is being updated"
        )
    if cached is None:
        with store.scratch() as scratch:
            temporary = scratch / "Packages.xz"
            temporary.write_bytes(data)
            store.add_file(temporary, digest)
    return data


def _verified_release(data: bytes, url: str, store: Store) -> dict[str, str]:
    gpgv = process.find_program("gpgv", remedy=REMEDY)
    keyring = next((path for path in KEYRINGS if path.exists()), None)
    if keyring is None:
        message = "Debian's archive keyring is not installed"
        raise ToolMissing(message, hint=REMEDY)
    with store.scratch() as scratch:
        signed, clear = scratch / "InRelease", scratch / "Release"
        signed.write_bytes(data)
        command = [gpgv, "--status-fd", "1", "--keyring", str(keyring), "--output", str(clear)]
        result = process.run_command([*command, str(signed)], check=False)
        states = [
            line.split()[1] for line in result.stdout.splitlines() if line.startswith("[GNUPG:] ")
        ]
        # There are signatures of several keys; an old keyring may lack the newest, so one valid
        # signature suffices.
        if "VALIDSIG" not in states or "BADSIG" in states or not clear.exists():
            tail = " / ".join(result.stderr.strip().splitlines()[-3:])
            message = f"{url}: no valid Debian signature ({tail})"
            raise IntegrityError(
                message, hint=f"try another mirror, or update the keyring: {REMEDY}"
            )
        return parse_fields(clear.read_text(encoding="utf-8"))
