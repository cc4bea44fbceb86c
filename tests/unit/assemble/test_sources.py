"""Tests which files of a lock need a server and which are available offline."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest

from imgbuild.assemble.inputs import Inputs
from imgbuild.assemble.sources import LockSources
from imgbuild.cache.context import Context
from imgbuild.cache.store import Store
from imgbuild.errors import FetchFailed
from imgbuild.http.client import HttpClient
from imgbuild.lock.lock_file import Lock, make_lock
from imgbuild.lock.resolution import BuiltWheel, Deb, LockedFile, Resolution, Wheel
from imgbuild.matrix.model import Matrix, PackageIndex
from imgbuild.solve.sdists import host_arch
from imgbuild.values import Arch, sha256
from tests.support import samples
from tests.support.rows import each_row


def words(file: str) -> bytes:
    return f"the bytes of {file}".encode()


def locked(file: str) -> LockedFile:
    return LockedFile(file=file, size=len(words(file)), sha256=sha256(words(file)))


def wheel(package: str, index: str) -> Wheel:
    file = locked(f"{package}-1.0-py3-none-any.whl")
    return Wheel(**msgspec.structs.asdict(file), package=package, version="1.0", index=index)


def deb(package: str) -> Deb:
    file = locked(f"pool/main/{package}_1.0_all.deb")
    return Deb(**msgspec.structs.asdict(file), package=package, version="1.0", arch="all")


SDIST = locked("demo-1.0.tar.gz")
BACKEND = wheel("backend", "own")
TOOLS = wheel("tools", "pypi")
DEBS = (deb("bash"), deb("python3"))
BUILT = BuiltWheel(
    package="demo",
    version="1.0",
    index="own",
    sdist=SDIST,
    env={},
    requires=(BACKEND, TOOLS),
    wheel=locked("demo-1.0-py3-none-any.whl"),
)


def sample(folder: Path, arch: Arch, debs: tuple[Deb, ...] = DEBS) -> tuple[Lock, Matrix]:
    """A lock for `arch` with a built wheel, whose sdist and build backend are in a local folder."""
    matrix = samples.matrix(indexes={"demo": "own", "backend": "own"}, arch=(arch,))
    package_index = PackageIndex(url=f"{folder.as_uri()}/", flat=True, upload_times="none")
    nowhere = PackageIndex(url="http://127.0.0.1:9/simple")
    matrix = msgspec.structs.replace(matrix, indexes={"pypi": nowhere, "own": package_index})
    resolution = Resolution(wheels=(), built=(BUILT,), debs=debs)
    return make_lock(matrix, "small", {arch: resolution}), matrix


def store_of(folder: Path, items: Iterable[LockedFile]) -> Store:
    store = Store.open(folder / "cache")
    for item in items:
        with store.scratch() as temporary:
            path = temporary / "file"
            path.write_bytes(words(item.file))
            store.add_file(path, item.sha256)
    return store


def other(arch: Arch) -> Arch:
    return next(each for each in Arch if each is not arch)


@each_row(
    ("here", "needed"),
    [
        ((TOOLS, *DEBS), False),  # the sdist and the build backend are in the folder
        ((SDIST, BACKEND, TOOLS, *DEBS), False),
        (DEBS, True),
        ((TOOLS,), True),
        ((TOOLS, DEBS[0]), True),
        ((), True),
    ],
)
def test_wheel_is_built_offline_if_its_build_root_is_cached(
    tmp_path: Path, here: tuple[LockedFile, ...], needed: bool
) -> None:
    lock, matrix = sample(tmp_path, host_arch())
    required_hashes = {BUILT.wheel.sha256}
    context = Context(store_of(tmp_path, here), HttpClient(offline=True))
    located = LockSources(lock, matrix, context).locate(required_hashes)
    assert located.remote == (required_hashes if needed else set())
    assert located.ingredients == {SDIST.sha256, BACKEND.sha256, TOOLS.sha256}


@pytest.mark.parametrize("elsewhere", [False, True])
def test_build_for_another_architecture_needs_the_debian_archive(
    tmp_path: Path, elsewhere: bool
) -> None:
    arch, debs = (other(host_arch()), DEBS) if elsewhere else (host_arch(), ())
    lock, matrix = sample(tmp_path, arch, debs)
    required_hashes = {BUILT.wheel.sha256}
    context = Context(store_of(tmp_path, (TOOLS, *DEBS)), HttpClient(offline=True))
    assert LockSources(lock, matrix, context).locate(required_hashes).remote == required_hashes


def test_offline_build_with_missing_inputs_fails_before_any_download(tmp_path: Path) -> None:
    (tmp_path / SDIST.file).write_bytes(words(SDIST.file))
    (tmp_path / BACKEND.file).write_bytes(words(BACKEND.file))
    lock, matrix = sample(tmp_path, host_arch())
    store = store_of(tmp_path, (TOOLS,))
    inputs = Inputs(matrix, Context(store, HttpClient(attempts=1, offline=True)))
    with pytest.raises(FetchFailed, match="1 inputs of small are not in") as caught:
        inputs.fetch_missing(lock, {BUILT.wheel.sha256})
    assert caught.value.hint == "run once without --offline"
    assert store.file(SDIST.sha256) is None
