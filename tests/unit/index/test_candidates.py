"""Tests which files of an index a target can use, and the reasons for exclusion."""

import datetime
import platform
import sys

import pytest
from packaging import tags as oracle
from packaging.version import Version

from imgbuild.index.candidates import (
    FileRules,
    best_wheel,
    exclusion_reason,
    is_sdist,
    same_version,
    usable_files,
    wheel_platform_and_python,
)
from imgbuild.index.pages import IndexFile
from imgbuild.values import Arch
from imgbuild.wheel.tags import WheelTags
from tests.support.rows import each_row

TAGS = WheelTags(python="3.11.2", glibc="2.36", arch=Arch.X86_64)
RULES = FileRules(as_of=datetime.date(2025, 6, 20), tags=TAGS, pins={"demo": "2.0"})
BEFORE = datetime.datetime(2025, 6, 19, 23, 59, 59, tzinfo=datetime.UTC)
MIDNIGHT = datetime.datetime(2025, 6, 20, tzinfo=datetime.UTC)


def file(name="demo-1.0-py3-none-any.whl", **fields):
    return IndexFile(name=name, url=f"https://x.example/{name}", **{"uploaded": BEFORE, **fields})


@each_row(
    ("given", "words"),
    [
        (file(), None),
        (file(uploaded=MIDNIGHT), "not before the cut-off 2025-06-20"),
        (file(uploaded=None), "has no upload time"),
        (file(yanked=True), "was yanked"),
        (file("demo-2.0-py3-none-any.whl", yanked=True), None),
        (file("demo-1.0.tar.gz"), "is not a wheel"),
        (file("demo-1.0-cp312-cp312-manylinux_2_17_x86_64.whl"), "Linux x86_64, Python cp312"),
        (file("demo-1.0-cp311-cp311-manylinux_2_17_aarch64.whl"), "Linux aarch64"),
        (file("demo-1.0-cp311-cp311-manylinux_2_39_x86_64.whl"), "is for"),
        (file("demo-1.0-cp311-cp311-musllinux_1_2_x86_64.whl"), "musl Linux"),
        (file("demo-1.0-cp311-cp311-manylinux_2_36_x86_64.whl"), None),
        (file("demo-1.0-cp39-abi3-manylinux2014_x86_64.whl"), None),
        (file("demo-1.0-cp311-cp311-linux_x86_64.whl"), None),
        (file(requires_python=">=3.12"), "requires Python >=3.12"),
        (file(requires_python=">=3.11.1"), None),
        (file(requires_python="not a specifier"), None),
    ],
)
def test_files_of_an_index_are_excluded_with_a_reason(given, words):
    reason = exclusion_reason(given, "demo", RULES, timed=True)
    assert reason is None if words is None else words in (reason or "")


def test_cutoff_date_is_not_applied_to_an_index_without_upload_times():
    assert exclusion_reason(file(uploaded=None), "demo", RULES, timed=False) is None


@each_row(
    ("version", "pin", "same"),
    [
        ("2.6.0", "2.6.0", True),
        ("2.6.0", "2.6", True),
        ("2.6.0+cu124", "2.6.0", True),
        ("2.6.0+cpu", "2.6.0+cu124", False),
        ("2.6.1", "2.6.0", False),
        ("2.6.0", None, False),
    ],
)
def test_pin_matches_a_local_version_of_the_same_release(version, pin, same):
    assert same_version(Version(version), pin) is same


def test_best_wheel_has_the_most_specific_tag_and_then_the_highest_build():
    names = [
        "demo-1.0-py3-none-any.whl",
        "demo-1.0-cp39-abi3-manylinux_2_28_x86_64.whl",
        "demo-1.0-cp311-cp311-manylinux_2_17_x86_64.whl",
        "demo-1.0-2-cp311-cp311-manylinux_2_28_x86_64.whl",
        "demo-1.0-10-cp311-cp311-manylinux_2_28_x86_64.whl",
        "demo-1.1-cp311-cp311-manylinux_2_36_x86_64.whl",
    ]
    files = usable_files([file(name) for name in names], "demo", RULES, timed=True)
    chosen = best_wheel(files, Version("1.0"), TAGS)
    assert chosen is not None
    assert chosen.name == "demo-1.0-10-cp311-cp311-manylinux_2_28_x86_64.whl"
    assert best_wheel(files, Version("3.0"), TAGS) is None


def test_sdists_are_recognized_by_name():
    assert is_sdist(file("demo-1.0.tar.gz"))
    assert not is_sdist(file("demo.tar.gz"))
    assert not is_sdist(file())


@pytest.mark.skipif(
    sys.implementation.name != "cpython" or platform.libc_ver()[0] != "glibc",
    reason="packaging lists the tags of CPython on glibc only",
)
def test_wheel_tags_match_python_on_this_machine():
    python = ".".join(map(str, sys.version_info[:2]))
    tags = WheelTags(
        python=python, glibc=platform.libc_ver()[1], arch=Arch.parse(platform.machine())
    )
    expected = list(oracle.sys_tags())
    ranks = [
        tags.rank_wheel(f"x-1-{tag.interpreter}-{tag.abi}-{tag.platform}.whl") for tag in expected
    ]
    assert None not in ranks
    assert [rank[0] for rank in ranks if rank] == list(range(len(expected)))


@pytest.mark.parametrize(
    ("glibc", "arch", "name"),
    [
        ("2.36", Arch.X86_64, "x86_64-manylinux_2_36"),
        ("2.30", Arch.X86_64, "x86_64-manylinux_2_28"),
        ("2.41", Arch.ARM64, "aarch64-manylinux_2_40"),
    ],
)
def test_uv_platform_names_match_glibc_and_architecture(glibc, arch, name):
    assert WheelTags(python="3.11", glibc=glibc, arch=arch).uv_platform == name


def test_wheel_files_are_described_by_platform():
    name = "demo-1.0-cp310-cp310-macosx_11_0_arm64.whl"
    assert wheel_platform_and_python(name) == "macOS arm64, Python cp310"
    assert wheel_platform_and_python("nonsense.whl") == "an unknown platform"
