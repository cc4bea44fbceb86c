"""Debian's archive: mirrors, and the packages of a base with their hashes.

Debian's archive keyring signs `InRelease`, which has the hash of `Packages.xz`, which has the hash
of each package.

Only the suite's main archive is read. A point release leaves its files in place until the next one,
and the last one leaves them forever, while security and updates suites drop each superseded file: a
lock that named those would be unusable within weeks. Security fixes come with the point releases.
"""

from __future__ import annotations

import lzma
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from imgbuild.boundary import reading
from imgbuild.cache.context import Context
from imgbuild.cache.store import Store
from imgbuild.deb.closure import DebianArchive, close
from imgbuild.deb.control import fields, paragraphs
from imgbuild.errors import FetchFailed, IntegrityError, ToolMissing
from imgbuild.lock.resolution import Deb
from imgbuild.matrix.model import DebianBase
from imgbuild.system import process
from imgbuild.values import Arch, sha256

KEYRINGS = (
    Path("/usr/share/keyrings/debian-archive-keyring.gpg"),
    Path("/usr/share/keyrings/debian-archive-keyring.pgp"),
)
# Of an index's fields only these are kept in memory: the whole is 60,000 packages.
USED = frozenset(
    (
        *("Package", "Version", "Architecture", "Filename", "Size", "SHA256"),
        *("Essential", "Priority", "Provides", "Depends", "Pre-Depends", "Conflicts", "Breaks"),
    )
)
PARSED = "debian-index-1"  # the number changes with `USED` and with how an index is parsed
REMEDY = "apt-get install gpgv debian-archive-keyring"


def resolve_debs(base: DebianBase, arch: Arch, context: Context) -> tuple[Deb, ...]:
    """The base's packages and all they need on `arch`, sorted by name.

    FetchFailed if no mirror has the suite, IntegrityError if a signature or hash is wrong,
    ToolMissing without gpgv or Debian's keyring, InputError for an unknown package, NoSolution
    if a dependency cannot be met.
    """
    archive = DebianArchive(_packages(base, arch, context))
    return _debs(close(archive, base.packages, file="matrix.yaml"))


def added_debs(
    base: DebianBase,
    arch: Arch,
    have: Sequence[Deb],
    wanted: Sequence[str],
    control: Callable[[Deb], dict[str, str]],
    context: Context,
) -> tuple[Deb, ...]:
    """What `wanted` needs beside the packages that are there already, sorted by name.

    These stay at their versions; `control` reads what one says of itself where the archive has
    another version by now. Errors as for `resolve_debs`.
    """
    listed = list(_packages(base, arch, context))
    newest = DebianArchive(listed).packages
    kept = {
        deb.package: known
        if (known := newest.get(deb.package)) is not None and known["Version"] == deb.version
        else _used(control(deb))
        for deb in have
    }
    rest = (package for package in listed if package["Package"] not in kept)
    archive = DebianArchive((*kept.values(), *rest))
    chosen = close(archive, wanted, file="matrix.yaml", have=tuple(kept))
    return _debs([package for package in chosen if package["Package"] not in kept])


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


def _packages(base: DebianBase, arch: Arch, context: Context) -> list[dict[str, str]]:
    """Every package of the suite, as the first mirror that answers lists it."""
    places = mirrors(base)
    if not places:
        message = f"no Debian mirror is known for {base.suite}"
        hint = "add one to the base's `mirrors` in matrix.yaml, such as a dated snapshot"
        raise FetchFailed(message, hint=hint)
    failures = []
    for mirror in places:
        try:
            with reading(mirror, hint="try another mirror"):
                found = _indexes(base, arch, mirror, context)
        except FetchFailed as error:
            context.reporter.detail(f"{mirror}: {error.message}")
            failures.append(f"{mirror}: {error.message}")
            continue
        return [package for listed in found for package in listed]
    message = f"no mirror answers for Debian {base.suite}:\n" + "\n".join(failures)
    raise FetchFailed(
        message, hint="check the network and the proxy, or name a mirror in matrix.yaml"
    )


def mirrors(base: DebianBase) -> tuple[str, ...]:
    """Archives to try, in order: those of this machine's apt, then the base's own."""
    return tuple(dict.fromkeys((*_apt_sites(base.suite), *(m.rstrip("/") for m in base.mirrors))))


def urls(deb: Deb, mirrors: Sequence[str]) -> list[str]:
    """Where `deb` may be fetched, one address for each mirror."""
    return [f"{mirror}/{deb.file}" for mirror in mirrors]


def _used(paragraph: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in paragraph.items() if name in USED}


def _apt_sites(suite: str) -> list[str]:
    """Sites of this machine's apt: those with `suite`, then others that look like Debian's."""
    try:
        apt = process.find("apt-get", remedy="")
    except ToolMissing:
        return []  # not a Debian machine: the base's own mirrors serve
    form = "$(CREATED_BY) $(CODENAME) $(SITE)"
    result = process.run([apt, "indextargets", "--format", form], check=False)
    rows = [line.split() for line in result.stdout.splitlines()]
    sites = [
        (codename, site.rstrip("/"))
        for kind, codename, site in (row for row in rows if len(row) == 3)
        if kind == "Packages" and site.startswith(("http://", "https://"))
    ]
    same = [site for codename, site in sites if codename == suite]
    # A machine of another release still names a mirror of the whole archive.
    other = [site for codename, site in sites if codename != suite and site.endswith("/debian")]
    return [*same, *other]


def _indexes(
    base: DebianBase, arch: Arch, mirror: str, context: Context
) -> list[list[dict[str, str]]]:
    """The packages of the `Packages` index of each component, verified."""
    place = f"{mirror}/dists/{base.suite}"
    release = _verified(
        context.http.bytes(f"{place}/InRelease"), f"{place}/InRelease", context.store
    )
    if base.suite not in (release.get("Codename"), release.get("Suite")):
        message = f"{place}/InRelease is signed for {release.get('Codename')}, not for {base.suite}"
        raise IntegrityError(message, hint="the mirror is wrong or tampered with: try another")
    hashes = {}
    for line in release.get("SHA256", "").splitlines():
        parts = line.split()
        if len(parts) == 3:
            hashes[parts[2]] = parts[0]
    texts = []
    for component in base.components:
        name = f"{component}/binary-{arch.debian}/Packages.xz"
        if name not in hashes:
            message = f"{place}/InRelease names no {name}"
            raise IntegrityError(message, hint="check the base's `components` in matrix.yaml")
        texts.append(_index(f"{place}/{name}", hashes[name], context))
    return texts


def _index(url: str, digest: str, context: Context) -> list[dict[str, str]]:
    """The packages of an index; they are kept in the cache, since parsing takes seconds."""
    store, http = context.store, context.http
    if (kept := store.fact(PARSED, digest)) is not None:
        return msgspec.msgpack.decode(kept, type=list[dict[str, str]])
    known = store.file(digest)
    if known is not None:
        data = known.read_bytes()
    else:
        data = http.bytes(url)
        if sha256(data) != digest:
            # At a point release a mirror may hold the new index beside the old InRelease.
            folder = url.rpartition("/")[0]
            data = http.bytes(f"{folder}/by-hash/SHA256/{digest}")
    if sha256(data) != digest:
        message = f"{url}: sha256 {sha256(data)}, but InRelease says {digest}"
        raise IntegrityError(message, hint="the mirror is between two states: try again in an hour")
    if known is None:
        with store.scratch() as scratch:
            temporary = scratch / "Packages.xz"
            temporary.write_bytes(data)
            store.add_file(temporary, digest)
    listed = [_used(paragraph) for paragraph in paragraphs(lzma.decompress(data).decode())]
    store.put_fact(PARSED, digest, msgspec.msgpack.encode(listed))
    return listed


def _verified(data: bytes, url: str, store: Store) -> dict[str, str]:
    """The fields of a clear-signed `InRelease`; only what the signature covers is read."""
    gpgv = process.find("gpgv", remedy=REMEDY)
    keyring = next((path for path in KEYRINGS if path.exists()), None)
    if keyring is None:
        message = "Debian's archive keyring is not installed"
        raise ToolMissing(message, hint=REMEDY)
    with store.scratch() as scratch:
        signed, clear = scratch / "InRelease", scratch / "Release"
        signed.write_bytes(data)
        command = [gpgv, "--status-fd", "1", "--keyring", str(keyring), "--output", str(clear)]
        result = process.run([*command, str(signed)], check=False)
        states = [
            line.split()[1] for line in result.stdout.splitlines() if line.startswith("[GNUPG:] ")
        ]
        # Several keys sign; an old keyring may lack the newest, so one good signature is enough.
        if "VALIDSIG" not in states or "BADSIG" in states or not clear.exists():
            tail = " / ".join(result.stderr.strip().splitlines()[-3:])
            message = f"{url}: no valid signature of Debian ({tail})"
            raise IntegrityError(
                message, hint=f"try another mirror, or renew the keyring: {REMEDY}"
            )
        return fields(clear.read_text(encoding="utf-8"))
