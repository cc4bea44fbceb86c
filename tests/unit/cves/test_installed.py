"""Tests that packages of a lock have the names that advisories use."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from imgbuild.attest.sbom import packages
from imgbuild.attest.sbom.packages import Package
from imgbuild.cves.installed import InstalledSource, installed_sources, unknown_parts
from imgbuild.errors import InputError
from imgbuild.lock import lock_file
from imgbuild.lock.lock_file import Lock
from imgbuild.lock.resolution import BuiltWheel, Deb, Resolution
from imgbuild.values import Arch
from tests.support import samples, standalone_matrix
from tests.support.advisories import debian, pypi

IMAGES = Path(__file__).parents[3] / "images"
ARCH = Arch.X86_64
LIBSSL = msgspec.structs.replace(
    samples.deb("libssl3", "3.0.14-1~deb12u1+b2"),
    file="pool/updates/main/o/openssl/libssl3_3.0.14-1~deb12u1+b2_amd64.deb",
)


def _lock(*debs: Deb, **changes: object) -> Lock:
    wheels = (samples.wheel("torch", "2.6.0+cu124"), samples.wheel("zope.interface", "7.0"))
    resolution = Resolution(wheels=wheels, debs=debs, **changes)  # type: ignore[arg-type]
    return lock_file.make_lock(samples.matrix(), "small", {ARCH: resolution})


def _named(sources: tuple[InstalledSource, ...]) -> list[tuple[str, str, str]]:
    return [source.key for source in sources]


def test_debian_packages_map_to_source_packages_and_versions() -> None:
    gcc = samples.deb("g++", "4:12.2.0-3")
    records = {
        gcc.sha256: Package(file=gcc.file, source="gcc-defaults", source_version="1.203"),
        LIBSSL.sha256: Package(file=LIBSSL.file, source="openssl", source_version="3.0.14-1"),
    }
    openssl = samples.deb("openssl", "3.0.14-1")
    records[openssl.sha256] = Package(file=openssl.file)
    sources = installed_sources(_lock(gcc, LIBSSL, openssl), ARCH, records)
    assert _named(sources) == [
        ("Debian:12", "gcc-defaults", "1.203"),
        ("Debian:12", "openssl", "3.0.14-1"),
        ("PyPI", "torch", "2.6.0"),
        ("PyPI", "zope-interface", "7.0"),
    ]
    assert sources[1].files == ("libssl3", "openssl")
    assert sources[1].binaries == (("libssl3", LIBSSL.version), ("openssl", "3.0.14-1"))
    assert sources[2].purls == ("pkg:pypi/torch@2.6.0%2Bcu124",)


def test_lowest_fixed_version_is_above_the_installed_version() -> None:
    vllm = pypi("vllm", "2.0")
    assert vllm.lowest_fix(["1.0", "3.10", "3.9", "2.0", ""]) == "3.9"
    assert vllm.lowest_fix(["2.0", "of a commit"]) == ""
    assert debian("openssl", "1:1.0-1").lowest_fix(["3.0", "1:1.0-1+deb12u1"]) == "1:1.0-1+deb12u1"


def test_source_of_a_debian_package_is_derived_from_the_archive_folder() -> None:
    sources = installed_sources(_lock(LIBSSL), ARCH, {})
    assert _named(sources)[0] == ("Debian:12", "openssl", "3.0.14-1~deb12u1")


def test_vulnerabilities_of_wheels_built_from_sdists_are_included() -> None:
    wheel = samples.wheel("antlr4", "4.9.3")
    built = BuiltWheel(
        package="antlr4", version="4.9.3", index="pypi", sdist=wheel, env={},
        requires=(samples.wheel("setuptools", "80.0"),), wheel=wheel,
    )  # fmt: skip
    assert ("PyPI", "antlr4", "4.9.3") in _named(installed_sources(_lock(built=(built,)), ARCH, {}))


def test_debian_suite_without_a_release_number_is_refused() -> None:
    lock = _lock(LIBSSL)
    other = msgspec.structs.replace(
        lock, base=msgspec.structs.replace(lock.base, suite="sid", name="mine")
    )
    with pytest.raises(InputError, match="unknown suite 'sid' of the base mine of small") as error:
        installed_sources(other, ARCH, {})
    assert "bookworm" in (error.value.hint or "")


def test_packages_of_a_registry_base_are_reported_as_unknown() -> None:
    lock = _lock(base_manifest=f"sha256:{'0' * 64}")
    base = msgspec.structs.replace(lock.base, kind="registry", suite="", image="host/a@sha256:0")
    other = msgspec.structs.replace(lock, base=base)
    assert _named(installed_sources(other, ARCH, {}))[0][0] == "PyPI"
    message = "host/a@sha256:0: the lock contains its layers, but not its packages"
    assert unknown_parts(other, ARCH) == (message,)
    assert unknown_parts(lock, ARCH) != ()
    assert unknown_parts(_lock(LIBSSL), ARCH) == ()


def test_committed_locks_have_the_source_package_of_every_debian_package() -> None:
    recorded = packages.recorded_packages([IMAGES])
    debs = [
        deb
        for path in IMAGES.glob("*/lock.json")
        for resolution in lock_file.read_lock(IMAGES, path.parent.name).arch.values()
        for deb in resolution.debs
    ]
    assert len(debs) > 1000
    assert [deb.file for deb in debs if deb.sha256 not in recorded] == []
    folders = {
        (recorded[deb.sha256].source or deb.package, deb.file.split("/")[-2]) for deb in debs
    }
    assert {pair for pair in folders if pair[0] != pair[1]} == set()


def test_standalone_python_is_identified_by_its_repository() -> None:
    (source,) = (
        source
        for source in installed_sources(standalone_matrix.lock(), ARCH, {})
        if source.ecosystem == "GIT"
    )
    archive = standalone_matrix.archive()
    assert source.key == ("GIT", "cpython", "3.12.11")
    assert source.files == (archive.file,)
    (purl,) = source.purls
    assert purl.startswith(f"pkg:generic/cpython@3.12.11?checksum=sha256:{archive.sha256}&")
    assert source.lowest_fix(["3.12.2", "3.12.13", "3.12.12"]) == "3.12.12"
