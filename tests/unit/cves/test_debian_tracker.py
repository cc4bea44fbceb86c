"""Debian's security tracker: what is fixed, what is open, and what its file may not be."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from imgbuild.cves.debian_tracker import DebianTracker
from imgbuild.errors import ImgbuildError
from tests.support.advisories import OLD, TRACKER, debian, pypi


def _found(version: str) -> dict[str, tuple[str, str, str]]:
    packages = (debian("openssl", version), debian("glibc", "2.36-9"), pypi("openssl", "1"))
    return {
        one.ids[0]: (one.severity, one.fixed, one.note)
        for one in DebianTracker(TRACKER).find(packages).advisories
    }


def test_open_fixed_and_unimportant_vulnerabilities() -> None:
    still = {
        "CVE-2010-4756": ("low", "", ""),
        "CVE-2025-27587": ("unknown", "", "no update is planned: Minor issue"),
    }
    assert _found("3.0.14-1~deb12u2") == still
    assert _found(OLD) == still | {"CVE-2024-6119": ("unknown", "3.0.14-1~deb12u2", "")}


def test_a_suite_that_was_never_affected() -> None:
    old = msgspec.structs.replace(
        debian("openssl", "1.1.1n-0+deb11u5"), ecosystem="Debian:11", suite="bullseye"
    )
    assert DebianTracker(TRACKER).find([old]).advisories == ()


def test_a_suite_that_the_file_does_not_have() -> None:
    other = msgspec.structs.replace(debian("openssl", OLD), suite="forky")
    with pytest.raises(ImgbuildError, match="no data about the packages of the suite forky"):
        DebianTracker(TRACKER).find([other])


def test_a_status_that_is_not_known_is_said(tmp_path: Path) -> None:
    data = json.loads(TRACKER.read_text())
    data["glibc"]["CVE-2010-4756"]["releases"]["bookworm"]["status"] = "pending"
    (tmp_path / "tracker.json").write_text(json.dumps(data))
    answer = DebianTracker(tmp_path / "tracker.json").find([debian("glibc", "2.36-9")])
    assert (answer.advisories, [one.text for one in answer.unread]) == (
        (), ["CVE-2010-4756 about glibc: unknown status 'pending'"]
    )  # fmt: skip


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"<html>", "malformed"),
        (b"[]", "Expected `object`, got `array`"),
        (b'{"glibc": []}', "Expected `object`, got `array`"),
        (b'{"glibc": {"CVE-1": {"releases": {"bookworm": {"status": 1}}}}}', "got `int`"),
        (b'{"glibc": {"CVE-1": {}}}', "missing required field `releases`"),
    ],
)
def test_files_of_another_form(tmp_path: Path, data: bytes, said: str) -> None:
    place = tmp_path / "tracker.json"
    place.write_bytes(data)
    with pytest.raises(ImgbuildError) as error:
        DebianTracker(place).find([debian("glibc", "2.36-9")])
    text = " ".join((error.value.message, *map(str, getattr(error.value, "problems", ()))))
    assert "tracker.json" in text
    assert said in text
    assert error.value.hint
