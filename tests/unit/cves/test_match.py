"""Which versions an advisory is about."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from imgbuild.cves import match
from imgbuild.cves.installed import InstalledSource
from imgbuild.cves.records import OsvRecord
from tests.support.advisories import HEADERS, OPENSSL, PYNCCL, TORCH, debian, pypi, record


def _record(**changes: Any) -> OsvRecord:
    return msgspec.convert({**record(PYNCCL), **changes}, OsvRecord)


def _ranged(
    *events: dict[str, str], versions: tuple[str, ...] = (), kind: str = "ECOSYSTEM"
) -> OsvRecord:
    entry = {
        "package": {"ecosystem": "PyPI", "name": "vllm"},
        "ranges": [{"type": kind, "events": list(events)}],
        "versions": list(versions),
    }
    return _record(affected=[entry])


@pytest.mark.parametrize(
    ("name", "package", "affected"),
    [
        (TORCH, pypi("torch", "2.5.1"), True),
        (TORCH, pypi("torch", "2.6.0"), False),
        (TORCH, pypi("torch", "2.6.0rc1"), True),
        (TORCH, pypi("torchvision", "0.20.1"), False),
        (PYNCCL, pypi("vllm", "0.6.4.post1"), False),
        (PYNCCL, pypi("vllm", "0.6.5"), True),
        (PYNCCL, pypi("vllm", "0.8.4"), True),
        (PYNCCL, pypi("vllm", "0.8.5.post1"), False),
        (HEADERS, pypi("vllm", "0.10.1"), True),
        (HEADERS, pypi("vllm", "0.10.1.1"), False),
        (OPENSSL, debian("openssl", "3.0.14-1~deb12u1"), True),
        (OPENSSL, debian("openssl", "3.0.14-1~deb12u2"), False),
        (OPENSSL, debian("openssl", "3.0.14-1"), False),
        (OPENSSL, debian("openssl", "1:1.0-1"), False),
        (OPENSSL, pypi("openssl", "1.0"), False),
    ],
)
def test_real_advisories(name: str, package: InstalledSource, affected: bool) -> None:
    found = msgspec.convert(record(name), OsvRecord)
    assert match.is_affected(found, package) is affected


def test_releases_of_debian_differ() -> None:
    found = msgspec.convert(record(OPENSSL), OsvRecord)
    newer = InstalledSource(ecosystem="Debian:13", name="openssl", version="3.2.2-1")
    assert match.is_affected(found, newer)
    assert (match.fix(found, newer), match.fix(found, debian("openssl", "1-1"))) == (
        "3.3.2-1", "3.0.14-1~deb12u2"
    )  # fmt: skip


def test_ranges_that_open_again_and_the_next_fix() -> None:
    found = _ranged({"fixed": "2.0"}, {"introduced": "0"}, {"introduced": "3.0"}, {"fixed": "3.10"})
    versions = ("1.0", "2.0", "2.9", "3.0", "3.9", "3.10")
    assert [match.is_affected(found, pypi("vllm", one)) for one in versions] == [
        True, False, False, True, True, False
    ]  # fmt: skip
    assert [match.fix(found, pypi("vllm", one)) for one in ("1.0", "3.9", "4")] == [
        "2.0", "3.10", ""
    ]  # fmt: skip


def test_last_affected_versions_and_limits() -> None:
    last = _ranged({"introduced": "1.0"}, {"last_affected": "2.0"})
    assert match.is_affected(last, pypi("vllm", "2.0"))
    assert not match.is_affected(last, pypi("vllm", "2.0.post1"))
    listed = _ranged(versions=("legacy-1", "1.0.0"), kind="GIT")
    assert match.is_affected(listed, pypi("vllm", "1.0"))
    assert not match.is_affected(listed, pypi("vllm", "1.1"))
    commits = _ranged({"introduced": "0"}, kind="GIT")
    assert not match.is_affected(commits, pypi("vllm", "1.0"))
    numbers = _ranged({"introduced": "0"}, {"fixed": "9999999"}, kind="GIT")  # of a commit
    assert match.fix(numbers, pypi("vllm", "1.0")) == ""
    same = _ranged({"introduced": "0"}, {"fixed": "2.0"}, versions=("2.0",))  # it is listed, too
    assert match.is_affected(same, pypi("vllm", "2.0"))
    assert match.fix(same, pypi("vllm", "2.0")) == ""
    limited = _ranged({"introduced": "0"}, {"limit": "2.0"})
    assert match.is_affected(limited, pypi("vllm", "1.0"))
    assert not match.is_affected(limited, pypi("vllm", "2.0"))


def test_a_withdrawn_advisory_is_about_nothing() -> None:
    affected = pypi("vllm", "0.8.4")
    assert match.is_affected(_record(), affected)
    assert not match.is_affected(_record(withdrawn="2025-06-01T00:00:00Z"), affected)


def test_a_bound_that_is_no_version_is_an_error_and_not_a_pass() -> None:
    with pytest.raises(ValueError, match="soon"):
        match.is_affected(_ranged({"introduced": "0"}, {"fixed": "soon"}), pypi("vllm", "1.0"))
