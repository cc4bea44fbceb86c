"""Tests finding newer versions on an index, and the reasons against them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from imgbuild.cache.context import Context
from imgbuild.index.pages import IndexAddress, IndexFile, IndexLookup
from imgbuild.matrix.constraints import Constraint
from imgbuild.update import newer
from imgbuild.update.newer import NewerVersion, RequiredVersion, VersionSet
from imgbuild.values import Arch
from imgbuild.wheel.tags import WheelTags
from tests.support.local_index import LocalIndex, sdist_bytes
from tests.support.rows import each_row
from tests.support.servers import FileSite, serve_site

X86 = WheelTags(python="3.11.2", glibc="2.36", arch=Arch.X86_64)
ARM = WheelTags(python="3.11.2", glibc="2.36", arch=Arch.ARM64)
PINNED = {
    "torch": RequiredVersion(spec="==2.6.0", place="the target"),
    "engine": RequiredVersion(spec="==1.0", place="the target"),
}


@pytest.fixture(name="site")
def _site() -> Iterator[FileSite]:
    index = LocalIndex()
    index.wheel("torch", "2.6.0", ["nvidia-cuda-runtime-cu12==12.4.127"])
    index.wheel("torch", "2.7.0", ["nvidia-cuda-runtime-cu12==12.6.77"])
    for version, requires in (
        ("1.0", ["torch==2.6.0", "helper<2"]),
        ("1.1", ["torch==2.6.0", "helper>=2"]),
        ("1.2", ["torch==2.7.0"]),
        ("1.3rc1", ["torch==2.6.0"]),
    ):
        index.wheel("engine", version, requires)
    index.wheel("helper", "1.0")
    index.wheel("helper", "2.0")
    index.wheel("helper", "3.0", yanked=True)
    index.wheel("early", "0.1b1")
    files = index.site_files(api=False)
    files["simple/broken/"] = b"{not JSON"
    index.add("source", "source-2.0.tar.gz", sdist_bytes("source", "2.0", {}))
    files |= index.site_files(api=False)
    with serve_site(FileSite(files=files)) as site:
        yield site


def look(
    site: FileSite,
    folder: Path,
    versions: Mapping[str, str],
    wanted: Mapping[str, RequiredVersion] = PINNED,
    **fields: object,
) -> dict[str, NewerVersion]:
    """The newer versions for `versions`, in which engine requires torch and helper."""
    context = Context.open(root=folder / "cache")
    address = IndexAddress(name="pypi", address=site.url("simple"), timed=False)
    indexes = IndexLookup({"pypi": address}, {}, "pypi", context.http)
    requires = dict.fromkeys(versions, ()) | {"engine": ("torch==2.6.0", "helper<2")}
    values = {"name": "set", "tags": (X86,), "versions": versions, "wanted": wanted,
              "requires": requires, **fields}  # fmt: skip
    advanced: list[int] = []
    compared = VersionSet(**values)  # type: ignore[arg-type]
    rows = newer.look_up_newer(compared, sorted(versions), indexes, context, advanced.append)
    assert len(advanced) == len(versions)
    return {row.package: row for row in rows}


BASIC = {"torch": "2.6.0", "engine": "1.0", "helper": "1.0"}


def test_only_pinned_packages_block_newer_versions(site: FileSite, tmp_path: Path) -> None:
    rows = look(site, tmp_path, BASIC)
    assert rows["engine"] == NewerVersion(
        package="engine",
        version="1.0",
        newest="1.2",
        allowed="1.1",
        moves=("helper",),
        reasons=("1.2 requires torch==2.7.0, not 2.6.0",),
    )
    assert rows["torch"].allowed == ""
    assert rows["torch"].reasons == ("engine 1.0 requires torch==2.6.0",)
    helper = rows["helper"]  # 3.0 was yanked, and the pinned engine does not accept 2.0
    assert (helper.newest, helper.allowed, helper.required) == ("2.0", "", False)
    assert helper.reasons == ("engine 1.0 requires helper<2",)


def test_version_whose_extra_needs_a_newer_pinned_package_is_blocked(
    tmp_path: Path,
) -> None:
    index = LocalIndex()
    index.wheel("engine", "1.0")
    for version, range_of_extra in (("2.0", ">=0.5,<=0.9"), ("3.0", ">=1.1,<=1.9")):
        lines = [f'engine{range_of_extra}; extra == "engine"']
        index.wheel("trainer", version, lines)
    with serve_site(FileSite(files=index.site_files(api=False))) as site:
        rows = look(site, tmp_path, {"engine": "1.0", "trainer": "1.0"})
    trainer = rows["trainer"]
    assert trainer.allowed == "2.0"  # of which the range ends before the engine's version
    assert trainer.reasons == ("3.0 supports engine<=1.9,>=1.1 (extra engine), not 1.0",)


def test_local_version_is_treated_as_its_release(site: FileSite, tmp_path: Path) -> None:
    rows = look(site, tmp_path, {**BASIC, "torch": "2.7.0+cu126"})
    assert not rows["torch"].is_outdated
    assert "early" not in rows


def test_prereleases_are_not_listed_as_newer_versions(site: FileSite, tmp_path: Path) -> None:
    rows = look(site, tmp_path, {"early": "0.1a1", "engine": "1.2", "torch": "2.7.0"})
    assert not rows["early"].is_outdated
    assert not rows["engine"].is_outdated


def test_newer_torch_for_a_different_cuda_release_is_reported(
    site: FileSite, tmp_path: Path
) -> None:
    wanted = {"torch": PINNED["torch"]}
    rows = look(site, tmp_path, {"torch": "2.6.0"}, wanted, cuda="12.4")
    assert rows[("torch")].reasons == (
        "the wheel is built for CUDA 12.6, but the package set has CUDA 12.4",
    )
    rows = look(site, tmp_path, {"torch": "2.6.0"}, wanted, cuda="12.6")
    assert rows["torch"].allowed == "2.7.0"


def test_range_of_the_user_excludes_newer_versions_but_a_pin_does_not(
    site: FileSite, tmp_path: Path
) -> None:
    wanted = {"helper": RequiredVersion(spec="<2", place="requirements.txt:3")}
    row = look(site, tmp_path, {"helper": "1.0"}, wanted)["helper"]
    assert row.reasons == ("requirements.txt:3 requires helper<2",)
    wanted = {"helper": RequiredVersion(spec="==1.0", place="requirements.txt:3")}
    row = look(site, tmp_path, {"helper": "1.0"}, wanted)["helper"]
    assert (row.allowed, row.reasons) == ("2.0", ())


def test_pinned_packages_and_learned_constraints_block_newer_versions(
    site: FileSite, tmp_path: Path
) -> None:
    learned = Constraint(package="engine", versions="==1.1", needs="torch>=2.7")
    other = {"torch": PINNED["torch"], "engine": RequiredVersion()}
    row = look(site, tmp_path, BASIC, other, known=(learned,))["engine"]
    assert row.allowed == ""  # 1.1 is stopped by the constraint, 1.2 by the pin
    kept = {"helper": "extends: small keeps 1.0"}
    row = look(site, tmp_path, {"helper": "1.0"}, {}, kept=kept)["helper"]
    assert (row.allowed, row.reasons) == ("", ("extends: small keeps 1.0",))


def test_invalid_index_page_is_an_error_only_for_its_package(
    site: FileSite, tmp_path: Path
) -> None:
    rows = look(site, tmp_path, {"broken": "1.0", "absent": "1.0", "helper": "1.0"}, {})
    assert rows["helper"].allowed == "2.0"
    assert rows["absent"].error == "the index has no such package"
    assert "simple/broken/" in rows["broken"].error
    assert rows["broken"].is_outdated


def test_version_with_only_an_sdist_is_allowed_if_builds_are_allowed(
    site: FileSite, tmp_path: Path
) -> None:
    row = look(site, tmp_path, {"source": "1.0"}, {})["source"]
    assert (row.allowed, row.reasons) == ("", ("only an sdist",))
    row = look(site, tmp_path, {"source": "1.0"}, {}, sdists=frozenset(("source",)))["source"]
    assert (row.allowed, row.reasons) == ("2.0", ())


def file(name: str, python: str | None = None) -> IndexFile:
    """A file of an index."""
    return IndexFile(name=name, url=f"https://index.example/{name}", requires_python=python)


@each_row(
    ("files", "machines", "reasons"),
    [
        ([file("a-1-py3-none-any.whl")], (X86, ARM), ()),
        ([file("a-1-py3-none-any.whl", ">=3.12")], (X86,),
         ("requires Python >=3.12, but the package set has 3.11.2",)),
        ([file("a-1-cp311-cp311-manylinux_2_17_x86_64.whl")], (X86, ARM),
         ("no wheel for arm64 with Python 3.11",)),
        ([file("a-1-cp312-cp312-manylinux_2_17_x86_64.whl")], (X86,),
         ("no wheel for x86_64 with Python 3.11",)),
        ([file("a-1.tar.gz")], (X86,), ("only an sdist",)),
        ([file("a-1-py3-none-any.whl", "not a specifier")], (X86,), ()),
    ],
)  # fmt: skip
def test_versions_without_compatible_files_have_reasons(
    files: list[IndexFile], machines: tuple[WheelTags, ...], reasons: tuple[str, ...]
) -> None:
    assert newer.file_reasons(files, machines) == reasons
