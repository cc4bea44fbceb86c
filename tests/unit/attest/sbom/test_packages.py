"""Tests the stored metadata of wheels and Debian packages of locks."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from imgbuild import codec
from imgbuild.attest.sbom import packages
from imgbuild.attest.sbom.packages import Package, SbomPackages
from imgbuild.cache.store import Store
from imgbuild.errors import InputError, IntegrityError, LockStale
from imgbuild.lock.lock_file import make_lock, read_lock
from imgbuild.lock.resolution import Resolution, installed_wheels
from imgbuild.matrix import project_paths
from imgbuild.values import Arch
from tests.support import debs, samples

COPYRIGHT = b"Format: https://example.org/copyright-format/1.0/\n\nFiles: *\nLicense: Expat\n"
METADATA = """\
Metadata-Version: 2.4
Name: one
Version: 1.0
License-Expression: MIT
Requires-Dist: ray [serve,data] (>=2.9) ; python_version < "3.12"
Requires-Dist: numpy>=2; extra == "all"
Requires-Dist: own @ https://files.example/own.whl
Requires-Dist: not a requirement!
"""


def test_metadata_requirements_keep_versions_extras_and_markers():
    assert packages.package_from_metadata("one.whl", METADATA) == Package(
        file="one.whl",
        licence="MIT",
        requires=(
            'ray[data,serve]>=2.9; python_version < "3.12"',
            'numpy>=2; extra == "all"',
            "own @ https://files.example/own.whl",
        ),
    )


def test_debian_package_metadata_has_licence_source_and_relations(store: Store, tmp_path: Path):
    deb = debs.write_deb(
        tmp_path / "tool.deb",
        "tool",
        [debs.folder("./usr"), debs.file("./usr/share/doc/tool/copyright", COPYRIGHT)],
        Source="tools (2:1.0-3)",
        Depends="libc6 (>= 2.36), mawk | awk",
        Pre_Depends="dpkg (>= 1.17)",
        Provides="thing (= 1.0)",
    )
    store.add_file(tmp_path / "tool.deb", deb.sha256)
    assert packages.look_up_packages([(deb.sha256, deb)], store) == {
        deb.sha256: Package(
            file=deb.file,
            licence="MIT",
            source="tools",
            source_version="2:1.0-3",
            needs=("dpkg", "libc6", "mawk | awk"),
            provides=("thing",),
        )
    }


@pytest.mark.parametrize(
    ("path", "leads"),
    [
        ("./usr/share/doc/tool", "tool-base"),
        ("./usr/share/doc/tool/copyright", "../tool-base/copyright"),
    ],
)
def test_copyright_file_of_another_debian_package_is_used_if_linked(
    store: Store, tmp_path: Path, path: str, leads: str
):
    deb = debs.write_deb(tmp_path / "tool.deb", "tool", [debs.symlink(path, leads)])
    store.add_file(tmp_path / "tool.deb", deb.sha256)
    assert (
        packages.look_up_packages([(deb.sha256, deb)], store)[deb.sha256].copyright_package
        == "tool-base"
    )


def test_metadata_is_recorded_for_cached_files_and_omitted_for_missing_files(
    store: Store, tmp_path: Path
):
    wheel = samples.add_to_store(
        store, samples.write_wheel(tmp_path, "torch", "2.6.0"), "torch", "2.6.0"
    )
    pip = samples.wheel("pip")
    resolved = Resolution(wheels=(pip, wheel), debs=(samples.deb("bash"), samples.deb("python3")))
    lock = make_lock(samples.matrix(), "small", {Arch.X86_64: resolved})
    images = tmp_path / "images"
    packages.record_packages(images, lock, store)
    first_packages = packages.read_packages(images)
    wheel_package = Package(file=wheel.file, requires=())
    assert first_packages.packages == {wheel.sha256: wheel_package}
    # A wheel whose metadata the resolver read remotely is recorded without the file.
    store.put_fact("metadata", pip.sha256, METADATA.encode())
    packages.record_packages(images, lock, store)
    recorded_packages = packages.read_packages(images)
    assert recorded_packages.packages[pip.sha256].licence == "MIT"
    # Recorded metadata remains after the file was removed from the cache.
    store.drop_file(wheel.sha256)
    packages.packages_path(images).unlink()
    packages.record_packages(images, lock, store)
    assert packages.read_packages(images) == recorded_packages
    # Only dependencies in the lock count: none of pip's.
    plain = msgspec.structs.replace(recorded_packages.packages[pip.sha256], requires=())
    counted = packages.packages_of_lock(recorded_packages, lock)
    assert counted.packages == {wheel.sha256: wheel_package, pip.sha256: plain}
    alone = msgspec.structs.replace(resolved, wheels=(pip,))
    smaller = msgspec.structs.replace(lock, arch={Arch.X86_64: alone})
    assert list(packages.packages_of_lock(recorded_packages, smaller).packages) == [pip.sha256]


def test_metadata_record_without_requirement_versions_is_recreated(store: Store, tmp_path: Path):
    wheel = samples.add_to_store(
        store, samples.write_wheel(tmp_path, "torch", "2.6.0"), "torch", "2.6.0"
    )
    lock = make_lock(samples.matrix(), "small", {Arch.X86_64: Resolution(wheels=(wheel,), debs=())})
    earlier = Package(file=wheel.file, needs=("numpy",))
    codec.write_document(
        packages.packages_path(tmp_path), SbomPackages(packages={wheel.sha256: earlier})
    )
    assert packages.recorded_packages([tmp_path]) == {}
    packages.record_packages(tmp_path, lock, store)
    current = {wheel.sha256: Package(file=wheel.file, requires=())}
    assert packages.read_packages(tmp_path).packages == current
    assert packages.recorded_packages([tmp_path, tmp_path / "absent"]) == current


def test_files_of_committed_locks_are_recorded_with_requirements():
    catalogue = project_paths.catalogue_project()
    recorded_packages = packages.read_packages(catalogue.images)
    for name in catalogue.locked_targets():
        lock = read_lock(catalogue.images, name)
        lock_packages = packages.packages_of_lock(recorded_packages, lock).packages
        files = [
            each
            for locked in lock.arch.values()
            for tools in [[tool for built in locked.built for tool in built.requires]]
            for each in (*installed_wheels(locked), *tools, *locked.debs)
        ]
        absent = Package(file="absent.whl")
        lacking = [
            item.file for item in files if not lock_packages.get(item.sha256, absent).is_current
        ]
        assert lacking == [], f"run `imgbuild lock {name}` to record them"


def test_no_metadata_file_is_written_without_records(store: Store, tmp_path: Path):
    packages.record_packages(tmp_path / "images", samples.lock(), store)
    assert not packages.packages_path(tmp_path / "images").exists()


def test_conflicting_metadata_records_of_a_file_are_refused():
    package = Package(file="one.whl", licence="MIT", requires=())
    recorded_packages = SbomPackages(packages={"a" * 64: package})
    with pytest.raises(IntegrityError, match=r"recorded as .*MIT.* is now .*ISC"):
        packages.merge_sbom_packages(
            recorded_packages, {"a" * 64: msgspec.structs.replace(package, licence="ISC")}
        )


def test_unreadable_packages_file_is_refused(tmp_path: Path):
    path = packages.packages_path(tmp_path)
    codec.write_document(path, SbomPackages(format=99))
    with pytest.raises(LockStale, match=r"packages\.json: unsupported format 99 \(expected 1"):
        packages.read_packages(tmp_path)
    path.write_bytes(b"[]")
    with pytest.raises(InputError, match=r"packages\.json is not a valid list of packages"):
        packages.read_packages(tmp_path)
