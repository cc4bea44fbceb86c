"""Tests finding newer releases of a standalone Python in the list of its publisher."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import pytest

from imgbuild.cache.context import Context
from imgbuild.errors import FetchFailed, ImgbuildError, InputError
from imgbuild.matrix.load import parse_matrix
from imgbuild.matrix.model import Base, DebianBase, StandalonePython
from imgbuild.update import other_updates, python_releases, row_text, snapshots
from imgbuild.update.axes import CoolDown
from imgbuild.update.other_updates import BaseUpdates
from imgbuild.update.python_releases import PythonUpdate
from imgbuild.update.trial import MatrixRow
from imgbuild.values import Arch
from tests.support import standalone_matrix
from tests.support.servers import FileSite, serve_site
from tests.support.source_code import ROOT

MIRROR = "https://mirror.example/pbs/20260101/"
PUBLISHER = "https://forge.example/download/"
PLATFORMS = {Arch.X86_64: "x86_64-unknown-linux-gnu", Arch.ARM64: "aarch64-unknown-linux-gnu"}
LIST = "python-build-standalone.ndjson"
TODAY = datetime.date(2026, 11, 28)


def name(version: str, arch: Arch, variant: str = "install_only") -> str:
    return f"cpython-{version.replace('+', '%2B')}-{PLATFORMS[arch]}-{variant}.tar.gz"


def line(version: str, arches: tuple[Arch, ...] = tuple(Arch), **changes: object) -> bytes:
    """A line of the list, with archives of several types for each architecture."""
    build = version.partition("+")[2]
    artifacts = [
        {
            "platform": PLATFORMS[arch],
            "variant": variant,
            "url": f"{PUBLISHER}{build}/{name(version, arch, variant)}",
            "archive_format": "tar.gz",
            "sha256": ("a" if arch is Arch.X86_64 else "b") * 64,
            **changes,
        }
        for arch in arches
        for variant in ("install_only", "install_only_stripped")
    ]
    other = {
        "platform": "x86_64-apple-darwin",
        "variant": "pgo+lto+full",
        "url": "x",
        "sha256": None,
    }
    document = {
        "version": version,
        "date": "2026-11-10T00:00:00Z",
        "artifacts": [other, *artifacts],
    }
    return json.dumps(document).encode() + b"\n"


NEWEST_FIRST = (
    b"".join(map(line, ("3.14.0rc1+20261110", "3.13.9+20261110")))
    + line("3.12.16+20261110", (Arch.X86_64,))
    + line("3.12.15+20261021")
    + line("3.12.11+20260301")
    + line("3.12.11+20260101")
    + b"not JSON\n"
)


@pytest.fixture(name="site")
def _site() -> Iterator[FileSite]:
    with serve_site(FileSite(files={LIST: NEWEST_FIRST})) as site:
        yield site


def source(
    site: FileSite, version: str = "3.12.11+20260101", folder: str = MIRROR, **changes: object
) -> StandalonePython:
    """The Python of a base on both architectures, from the list that `site` serves."""
    archives = {arch: folder + name(version, arch) for arch in Arch}
    return msgspec.structs.replace(
        StandalonePython(
            version="3.12", origin="standalone", archives=archives, releases=site.url(LIST)
        ),
        **changes,
    )


def newer(
    tmp_path: Path, base: StandalonePython, before: datetime.date | None = None
) -> PythonUpdate | None:
    return python_releases.find_newer_release(base, Context.open(root=tmp_path / "cache"), before)


def test_newest_python_release_for_all_architectures_is_found_on_the_server(
    site: FileSite, tmp_path: Path
) -> None:
    update = newer(tmp_path, source(site))
    assert update is not None
    assert (update.version, update.newest) == ("3.12.11+20260101", "3.12.15+20261021")
    assert update.built == datetime.date(2026, 10, 21)
    assert update.archives == {
        arch: f"https://mirror.example/pbs/20261021/{name('3.12.15+20261021', arch)}"
        for arch in Arch
    }
    assert update.sha256 == {Arch.X86_64: "a" * 64, Arch.ARM64: "b" * 64}


def test_base_of_one_architecture_requires_only_builds_of_this_architecture(
    site: FileSite, tmp_path: Path
) -> None:
    kind = "install_only_stripped"
    archives = {Arch.X86_64: f"https://flat.example/{name('3.12.11+20260101', Arch.X86_64, kind)}"}
    update = newer(tmp_path, source(site, archives=archives))
    assert update is not None
    assert update.newest == "3.12.16+20261110"
    placed = f"{PUBLISHER}20261110/{name('3.12.16+20261110', Arch.X86_64, kind)}"
    assert update.archives == {Arch.X86_64: placed}  # its own server has no folder of the build


def test_newer_build_of_the_same_python_is_delayed_by_the_cool_down(
    site: FileSite, tmp_path: Path
) -> None:
    update = newer(tmp_path, source(site), datetime.date(2026, 10, 21))
    assert update is not None
    assert update.newest == "3.12.11+20260301"


def test_list_of_python_releases_is_read_up_to_the_current_release(
    site: FileSite, tmp_path: Path
) -> None:
    assert newer(tmp_path, source(site, "3.12.15+20261021")) is None
    assert newer(tmp_path, source(site, "3.12.11+20260101"), datetime.date(2026, 1, 1)) is None
    with pytest.raises(InputError, match=f"{LIST}, line 7 is not a valid list"):
        newer(tmp_path, source(site, "3.12.9+20250101"), datetime.date(2025, 2, 1))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (line("3.12.15+20261021", url="file:///etc/passwd"), "is not a URL of cpython-3.12.15"),
        (line("3.12.15+20261021", url=f"{PUBLISHER}{name('3.12.1+20240107', Arch.X86_64)}"), "URL"),
        (line("3.12.15+20261021", sha256="0" * 63), "sha256"),
        (b"x" * (python_releases.LINE + (1 << 20)), "longer than"),
        (b'{"version": 3}\n', "line 1 is not a valid list"),
        (b"\xff\n", "line 1 is not a valid list"),
    ],
)
def test_unusable_list_of_python_releases_is_an_error(
    site: FileSite, tmp_path: Path, content: bytes, message: str
) -> None:
    site.files[LIST] = content
    with pytest.raises(ImgbuildError) as caught:
        newer(tmp_path, source(site))
    error = caught.value
    problems = error.problems if isinstance(error, InputError) else ()
    assert message in " ".join((error.message, *map(str, problems)))


def test_missing_list_of_python_releases_and_missing_file_are_reported(
    site: FileSite, tmp_path: Path
) -> None:
    site.files.clear()
    with pytest.raises(FetchFailed, match="404"):
        newer(tmp_path, source(site))
    archives = {Arch.X86_64: "https://host.example/python.tar.gz"}
    with pytest.raises(InputError, match=r"'python.tar.gz' is not a file name"):
        newer(tmp_path, source(site, archives=archives))
    assert len(site.requests) == 1


def test_outdated_lists_the_newer_python_release_or_a_reason(
    site: FileSite, tmp_path: Path
) -> None:
    base = standalone_matrix.matrix(source(site)).bases["debian-12"]
    assert isinstance(base, DebianBase)
    before = BaseUpdates(base="debian-12", arch=Arch.X86_64, packages=0)
    context = Context.open(root=tmp_path / "cache")
    state = other_updates.add_python_update(before, base, context)
    assert state.python is not None
    assert state.python.newest == "3.12.15+20261021"
    site.files.clear()
    state = other_updates.add_python_update(before, base, context)
    assert state.python is None
    assert "404" in state.python_error


@pytest.mark.parametrize(
    ("days", "newest"),
    [(None, "3.12.15+20261021"), (7, "3.12.15+20261021"), (60, "3.12.11+20260301")],
)
def test_new_base_has_python_release_and_sha256(
    site: FileSite, tmp_path: Path, days: int | None, newest: str
) -> None:
    base = standalone_matrix.matrix(source(site)).bases["debian-12"]
    bases: Mapping[str, Base] = {"debian-12-py312": base}
    context, cool_down = Context.open(root=tmp_path / "cache"), CoolDown(days=days, today=TODAY)
    snapshot = snapshots.find_newer_base(bases, "debian-12-py312", None, cool_down, context)
    assert snapshot is not None
    assert (snapshot.name, snapshot.after) == ("debian-12-py312-20261128", "")
    assert snapshot.python is not None
    assert snapshot.python.newest == newest
    assert snapshot.base.standalone_python is not None
    assert snapshot.base.standalone_python.sha256 == {Arch.X86_64: "a" * 64, Arch.ARM64: "b" * 64}
    assert snapshot.base.standalone_python.releases == site.url(LIST)


def test_new_base_is_written_into_the_matrix(tmp_path: Path) -> None:
    text = (ROOT / "matrix.yaml").read_bytes()
    matrix = parse_matrix(text, "matrix.yaml")
    row, base_name = "cu130-vllm0.33.0-py312", "debian-12-py312-20261128"
    base = matrix.bases["debian-12-py312"]
    assert isinstance(base, DebianBase)
    assert base.standalone_python is not None
    archives = {arch: f"{PUBLISHER}20261120/{name('3.12.17+20261120', arch)}" for arch in Arch}
    present = base.standalone_python
    renewed = msgspec.structs.replace(
        present, archives=archives, sha256=dict.fromkeys(Arch, "c" * 64)
    )
    target = msgspec.structs.replace(matrix.targets[row], base=base_name)
    target = row_text.renew_texts(
        matrix.targets[row], row, MatrixRow(name="new", target=target), TODAY
    )
    newer_base = msgspec.structs.replace(base, python_source=renewed)
    added = MatrixRow(name="new", target=target, bases={base_name: newer_base})
    written = row_text.insert_row(text, "matrix.yaml", row, added, "debian-12-py312")
    after = parse_matrix(written, "matrix.yaml")
    assert after.bases[base_name] == newer_base
    assert after.targets["new"].base == base_name
    assert f"on the base {base_name}" in after.targets["new"].tested
