"""Tests that signatures of the Debian archive are verified and modified data is refused."""

from __future__ import annotations

import itertools
import random
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from imgbuild.cache.context import Context
from imgbuild.cache.download import FileRequest, fetch_all
from imgbuild.cache.store import Store
from imgbuild.deb import apt
from imgbuild.deb.debian_version import compare_versions
from imgbuild.errors import FetchFailed, IntegrityError, ToolMissing
from imgbuild.http.client import HttpClient
from imgbuild.matrix.load import load_matrix
from imgbuild.matrix.model import DebianBase
from imgbuild.system import process
from imgbuild.values import Arch
from tests.support import needs, samples
from tests.support.servers import FileSite, serve_site

MATRIX = load_matrix(Path(__file__).parent.parent.parent / "matrix.yaml")
RELEASE = "debian/dists/bookworm/InRelease"
INDEX = "debian/dists/bookworm/main/binary-amd64/Packages.xz"


def base() -> DebianBase:
    return next(item for item in MATRIX.bases.values() if isinstance(item, DebianBase))


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    """The real release file and index as a mirror serves them."""
    needs.require_tool("gpgv")
    http, mirror = HttpClient(), apt.archive_mirrors(base())[0]
    return {
        path: http.fetch_bytes(mirror + path.removeprefix("debian")) for path in (RELEASE, INDEX)
    }


@pytest.fixture
def mirror(files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> Iterator[FileSite]:
    """A local mirror that serves the real files until a test changes them."""
    with serve_site(FileSite(files=dict(files))) as site:
        monkeypatch.setattr(apt, "archive_mirrors", lambda _: (site.url("debian"),))
        yield site


def resolved(folder: Path) -> int:
    http = HttpClient(attempts=1)
    return len(apt.resolve_debs(base(), Arch.X86_64, Context(Store.open(folder), http)).debs)


@pytest.mark.network
def test_signed_debian_index_is_used_and_cached(mirror: FileSite, tmp_path: Path) -> None:
    count = resolved(tmp_path)
    assert count > 150
    assert resolved(tmp_path) == count
    assert len(mirror.received_requests(INDEX)) == 1  # the second time it came from the store


@pytest.mark.network
@pytest.mark.usefixtures("mirror")
def test_tools_add_only_packages_that_the_base_lacks(tmp_path: Path) -> None:
    context = Context(Store.open(tmp_path), HttpClient(attempts=1))
    plain = apt.resolve_debs(base(), Arch.X86_64, context)
    more = msgspec.structs.replace(base(), tools=("jq", "python3"))
    resolved_debs = apt.resolve_debs(more, Arch.X86_64, context)
    assert apt.resolve_debs(more, Arch.X86_64, context) == resolved_debs  # stored
    assert plain.tools == ()
    assert {"jq", "libjq1"} <= set(resolved_debs.tools)
    assert "python3" not in resolved_debs.tools
    names = {deb.package for deb in resolved_debs.debs}
    assert names - set(resolved_debs.tools) == {deb.package for deb in plain.debs}


@pytest.mark.network
@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"Version: 12", b"Version: 13"),
        (b"SHA256:\n ", b"SHA256:\n f"),
        (b"Hash: SHA256", b"Hash: SHA1"),
    ],
)
def test_modified_release_file_is_refused(
    mirror: FileSite, tmp_path: Path, old: bytes, new: bytes
) -> None:
    assert old in mirror.files[RELEASE]
    mirror.files[RELEASE] = mirror.files[RELEASE].replace(old, new)
    with pytest.raises(IntegrityError, match="no valid Debian signature"):
        resolved(tmp_path)


@pytest.mark.network
def test_text_outside_the_signature_of_a_release_file_is_ignored(
    mirror: FileSite, tmp_path: Path
) -> None:
    forged = b"Codename: bookworm\nSHA256:\n " + b"0" * 64 + b" 1 main/binary-amd64/Packages.xz\n\n"
    mirror.files[RELEASE] = forged + mirror.files[RELEASE]
    try:
        deb_count = resolved(tmp_path)
    except IntegrityError:
        return  # gpgv may also refuse the complete file
    assert deb_count > 150


@pytest.mark.network
def test_unsigned_release_file_is_refused(mirror: FileSite, tmp_path: Path) -> None:
    text = mirror.files[RELEASE]
    mirror.files[RELEASE] = text[text.index(b"\n\n") + 2 : text.index(b"-----BEGIN PGP SIGNATURE")]
    with pytest.raises(IntegrityError, match="no valid Debian signature"):
        resolved(tmp_path)


@pytest.mark.network
def test_index_with_wrong_hash_is_refused(mirror: FileSite, tmp_path: Path) -> None:
    data = bytearray(mirror.files[INDEX])
    data[len(data) // 2] ^= 1
    mirror.files[INDEX] = bytes(data)
    with pytest.raises((IntegrityError, FetchFailed)):
        resolved(tmp_path)


@pytest.mark.network
def test_index_is_requested_by_hash_while_the_mirror_is_updated(
    mirror: FileSite, tmp_path: Path
) -> None:
    match = re.search(rb"([0-9a-f]{64}) +\d+ main/binary-amd64/Packages\.xz", mirror.files[RELEASE])
    assert match is not None
    by_hash = f"{INDEX.rpartition('/')[0]}/by-hash/SHA256/{match[1].decode()}"
    mirror.files[by_hash] = mirror.files[INDEX]
    mirror.files[INDEX] = b"newer"
    assert resolved(tmp_path) > 150


@pytest.mark.network
def test_release_file_of_another_suite_is_refused(mirror: FileSite, tmp_path: Path) -> None:
    mirror.files[RELEASE.replace("bookworm", "trixie")] = mirror.files[RELEASE]
    other = msgspec.structs.replace(base(), suite="trixie")
    with pytest.raises(IntegrityError, match="is signed for bookworm, not for trixie"):
        apt.resolve_debs(other, Arch.X86_64, Context(Store.open(tmp_path), HttpClient(attempts=1)))


@pytest.mark.network
def test_error_for_a_missing_keyring_has_a_hint(
    mirror: FileSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del mirror
    monkeypatch.setattr(apt, "KEYRINGS", (tmp_path / "none.gpg",))
    with pytest.raises(ToolMissing) as caught:
        resolved(tmp_path / "cache")
    assert caught.value.hint == apt.REMEDY


def test_unreachable_mirrors_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serve_site(FileSite()) as site:
        monkeypatch.setattr(apt, "archive_mirrors", lambda _: (site.url("debian"),))
        with pytest.raises(FetchFailed, match="no mirror responded for Debian bookworm"):
            resolved(tmp_path)
    monkeypatch.setattr(apt, "archive_mirrors", lambda _: ())
    with pytest.raises(FetchFailed, match="no Debian mirror is known"):
        resolved(tmp_path)


def test_mirrors_configured_on_the_machine_are_tried_first() -> None:
    needs.require_tool("apt-get", "apt")
    configured = process.run_command(
        ["apt-get", "indextargets", "--format", "$(SITE)"]
    ).stdout.split()
    extra = msgspec.structs.replace(base(), mirrors=("http://localhost:1/archive/",))
    mirrors = apt.archive_mirrors(extra)
    assert mirrors[-1] == "http://localhost:1/archive"
    assert set(mirrors[:-1]) <= {site.rstrip("/") for site in configured}


def test_release_class_is_resolved_to_a_code_name_from_the_apt_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The code name of `stable` is only in the lists, which are empty here."""
    needs.require_tool("apt-get", "apt")
    rows = ("bookworm", "http://localhost:1/debian"), ("stable", "http://localhost:2/debian")
    for count in (1, 2):
        lines = (f"deb {site} {suite} main\n" for suite, site in rows[:count])
        (tmp_path / "sources.list").write_text("".join(lines))
        (tmp_path / "lists").mkdir(exist_ok=True)
        (tmp_path / "apt.conf").write_text(
            f'Dir::Etc::sourcelist "{tmp_path}/sources.list";\nDir::Etc::sourceparts "-";\n'
            f'Dir::State::lists "{tmp_path}/lists";\n'
        )
        monkeypatch.setenv("APT_CONFIG", str(tmp_path / "apt.conf"))
        sites = apt._apt_sites.__wrapped__()
        assert sites == (rows[:1] if count == 1 else ())


@pytest.mark.long
@pytest.mark.network
def test_security_updates_are_installed_if_requested(tmp_path: Path) -> None:
    needs.require_tool("gpgv")
    context = Context(Store.open(tmp_path), HttpClient())
    secured = msgspec.structs.replace(base(), packages=("openssl",), security=())
    plain = msgspec.structs.replace(secured, security=None)
    main = apt.resolve_debs(plain, Arch.X86_64, context)
    assert main.security is None
    updated = apt.resolve_debs(secured, Arch.X86_64, context)
    date, lacking = apt.security_updates(plain, main.debs, Arch.X86_64, context)
    assert updated.security == date
    fixed = {update.package: update.fixed for update in lacking}
    assert "openssl" in fixed  # the last point release is older
    versions = {deb.package: deb.version for deb in updated.debs}
    assert {name: versions[name] for name in fixed} == fixed
    assert apt.security_updates(secured, updated.debs, Arch.X86_64, context) == (date, ())
    (deb,) = (deb for deb in updated.debs if deb.package == "openssl")
    urls = apt.deb_urls(deb, secured)
    assert all("/pool/updates/" in url for url in urls)
    assert urls
    fetch_all([FileRequest(deb, lambda: urls)], context, title="openssl")


@pytest.mark.network
def test_error_for_a_file_missing_on_the_mirror_has_a_hint(tmp_path: Path) -> None:
    context = Context(Store.open(tmp_path), HttpClient(attempts=1))
    with serve_site(FileSite()) as site:
        gone = samples.deb("openssl")
        request = FileRequest(
            gone, lambda: apt.deb_urls(gone, mirrored_base(site)), hint="lock it again"
        )
        with pytest.raises(FetchFailed, match="404") as caught:
            fetch_all([request], context, title="openssl")
    assert caught.value.hint == "lock it again"


def mirrored_base(site: FileSite) -> DebianBase:
    return msgspec.structs.replace(base(), mirrors=(site.url("debian"),))


def test_order_of_debian_versions_matches_dpkg() -> None:
    dpkg = needs.require_tool("dpkg")
    random_ = random.Random(12)
    pieces = ["1", "0", "9", "10", "a", "~", "+", ".", "deb", "rc", "~~", "b1", "00"]
    versions = [
        "1" + "".join(random_.choices(pieces, k=random_.randint(0, 5))) + revision
        for revision in ("", "-1", "-0", "-1~bpo", "-1+b1")
        for _ in range(6)
    ]
    for left, right in itertools.combinations(versions, 2):
        relation = {-1: "lt", 0: "eq", 1: "gt"}[compare_versions(left, right)]
        done = subprocess.run([dpkg, "--compare-versions", left, relation, right], check=False)
        assert done.returncode == 0, (left, relation, right)
