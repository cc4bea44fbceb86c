"""Tests the differences between two committed locks, including older formats."""

from __future__ import annotations

import json
from typing import Any

import pytest

from imgbuild.show import lock_changes
from imgbuild.show.lock_changes import VersionChange
from tests.support.rows import each_row

DEB = {"package": "openssl", "version": "3.0.17-1~deb12u2", "arch": "amd64"}
WHEEL = {"package": "trl", "version": "0.19.0", "sha256": "0"}
LOCK: dict[str, Any] = {
    "base": {"name": "debian-12", "suite": "bookworm", "python": "3.11"},
    "settings": {
        "env": {"A": "1", "B": "2"},
        "links": {},
        "labels": {"dev.imgbuild.gpu": "8.0"},
        "workdir": "/workspace",
    },
    "as_of": "2026-01-01",
    "layers": {"groups": 4},
    "arch": {"x86_64": {"wheels": [WHEEL], "debs": [DEB], "security": "2026-01-01"}},
}


def changed(**values: Any) -> lock_changes.LockChanges:
    before, after = (
        lock_changes.decode_lock(json.dumps(each).encode()) for each in (LOCK, {**LOCK, **values})
    )
    assert before is not None
    assert after is not None
    return lock_changes.lock_changes(before, after)


def arch(**values: Any) -> dict[str, Any]:
    return {"x86_64": {**LOCK["arch"]["x86_64"], **values}}


def test_equal_locks_have_no_changes() -> None:
    assert changed() == lock_changes.LockChanges()


def test_version_changes_of_python_and_debian_packages_are_listed() -> None:
    new = {**DEB, "version": "3.0.18-1~deb12u1"}
    added = {"package": "libstdc++6", "version": "12.2.0-14"}
    python = changed(arch=arch(wheels=[{**WHEEL, "version": "0.20.0"}]))
    assert python.python == (VersionChange(package="trl", old="0.19.0", new="0.20.0"),)
    assert python.debian == ()
    assert changed(arch=arch(debs=[new, added])).debian == (
        VersionChange(package="libstdc++6", new="12.2.0-14"),
        VersionChange(package="openssl", old="3.0.17-1~deb12u2", new="3.0.18-1~deb12u1"),
    )
    assert changed(arch=arch(wheels=[])).python == (VersionChange(package="trl", old="0.19.0"),)


def test_packages_of_a_new_architecture_are_not_listed_as_new() -> None:
    both = {**arch(), "arm64": {"wheels": [WHEEL, {**WHEEL, "package": "torch"}]}}
    assert changed(arch=both) == lock_changes.LockChanges(settings=("arm64 added",))


@each_row(
    ("values", "line"),
    [
        ({"base": {**LOCK["base"], "name": "debian-13"}}, "base: debian-12 → debian-13"),
        (
            {"base": {**LOCK["base"], "hardened": True}},
            f"base: {lock_changes.HARDENED_TEXT}",
        ),
        (
            {"drop": [{"package": "fastapi-cli", "paths": ["bin/fastapi"]}]},
            "omitted: bin/fastapi of fastapi-cli",
        ),
        (
            {"settings": {**LOCK["settings"], "readme": "# x"}},
            "a README was added: /opt/imgbuild/README",
        ),
        ({"as_of": "2026-02-01"}, "cut-off date of packages: 2026-01-01 → 2026-02-01"),
        (
            {"layers": {"groups": 5}},
            "packages are divided into layers differently (rules: groups)",
        ),
        (
            {"arch": arch(security="2026-02-01")},
            "security updates of Debian: 2026-01-01 → 2026-02-01",
        ),
        ({"settings": {**LOCK["settings"], "env": {"A": "1", "B": "3"}}}, "variable changed: B"),
        ({"settings": {**LOCK["settings"], "env": {}}}, "variables removed: A, B"),
        ({"settings": {**LOCK["settings"], "links": {"/a\x1b": "b"}}}, "link added: /a"),
        ({"settings": {**LOCK["settings"], "workdir": "/"}}, "working directory: /workspace → /"),
        (
            {"settings": {**LOCK["settings"], "labels": {"dev.imgbuild.gpu": "9.0"}}},
            "compute capabilities: 8.0 → 9.0",
        ),
    ],
)
def test_changes_of_base_and_settings_have_one_line_each(values: dict[str, Any], line: str) -> None:
    assert changed(**values) == lock_changes.LockChanges(settings=(line,))


@pytest.mark.parametrize("data", [None, b"{", b'{"arch": {"x86_64": {"wheels": [1]}}}'])
def test_unreadable_old_lock_is_ignored(data: bytes | None) -> None:
    assert lock_changes.decode_lock(data) is None
