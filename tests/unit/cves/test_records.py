"""Tests reading the severity, IDs and text of OSV records."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from imgbuild.cves.records import LIMIT, OsvRecord, decode_record, record_advisories
from imgbuild.errors import ImgbuildError
from tests.support.advisories import OLD_VERSION, OPENSSL, TORCH, UPDATE, debian, read_advisory


def _rating(name: str, package: str, **changes: Any) -> tuple[str, float | None]:
    advisory = msgspec.convert({**read_advisory(name), **changes}, OsvRecord)
    ecosystem = "PyPI" if name == TORCH else "Debian:12"
    return advisory.package_rating(ecosystem, package)


def _urgency(*words: str) -> list[dict[str, Any]]:
    package = {"ecosystem": "Debian:12", "name": "openssl"}
    return [{"package": package, "ecosystem_specific": {"urgency": word}} for word in words]


def test_stated_severity_takes_precedence_over_the_score() -> None:
    assert _rating(TORCH, "torch") == ("critical", 9.3)
    vector = [{"type": "CVSS_V3", "score": "CVSS:3.1/AV:N/AC:L/PR:N/UI:N/S:U/C:N/I:N/A:H"}]
    assert _rating(TORCH, "torch", severity=vector) == ("critical", 7.5)
    assert _rating(TORCH, "torch", severity=vector, database_specific=None) == ("high", 7.5)
    assert _rating(TORCH, "torch", database_specific={}) == ("critical", 9.3)  # of CVSS 4
    assert _rating(TORCH, "torch", severity=(), database_specific={}) == ("unknown", None)


@pytest.mark.parametrize(
    ("words", "rated"),
    [
        (("not yet assigned",), "high"),
        (("unimportant",), "low"),
        (("unimportant", "high"), "high"),
    ],
)
def test_debian_urgency_unimportant_is_low_severity(words: tuple[str, ...], rated: str) -> None:
    assert _rating(OPENSSL, "openssl", affected=_urgency(*words)) == (rated, 7.5)


def test_debian_urgency_is_used_if_no_score_exists() -> None:
    assert _rating(OPENSSL, "openssl", severity=None, affected=_urgency("low**"))[0] == "low"
    assert _rating(OPENSSL, "openssl", severity=None)[0] == "unknown"


def test_advisory_about_a_malicious_package_is_critical() -> None:
    bare = {"database_specific": None, "severity": None}
    assert _rating(TORCH, "torch", **bare) == ("unknown", None)
    assert _rating(TORCH, "torch", id="MAL-2025-1", **bare) == ("critical", None)


def test_highest_of_several_severity_scores_applies() -> None:
    vectors = [
        {"type": "CVSS_V3", "score": f"CVSS:3.1/AV:N/AC:L/PR:N/UI:N/S:U/C:{each}/I:N/A:N"}
        for each in "LHN"
    ]
    assert _rating(TORCH, "torch", severity=vectors, database_specific=None) == ("high", 7.5)


def test_advisory_for_several_vulnerabilities_is_split() -> None:
    update = {**read_advisory(UPDATE), "upstream": ["CVE-2024-6119", "CVE-2024-5535"]}
    openssl = debian("openssl", OLD_VERSION)
    split_advisories = list(record_advisories(msgspec.convert(update, OsvRecord), openssl, "here"))
    assert [advisory.ids for advisory in split_advisories] == [
        ("CVE-2024-6119",),
        ("CVE-2024-5535",),
    ]
    assert {advisory.note for advisory in split_advisories} == {"fixed by DSA-5764-1"}
    alone = msgspec.convert({**update, "upstream": None}, OsvRecord)
    assert [advisory.ids for advisory in record_advisories(alone, openssl, "here")] == [
        ("DSA-5764-1",)
    ]


def test_text_of_an_advisory_is_one_line() -> None:
    advisory = msgspec.convert(read_advisory(OPENSSL), OsvRecord)
    assert advisory.text.endswith("an invalid memory address.")
    assert msgspec.convert({"id": "A-1"}, OsvRecord).text == ""
    assert advisory.all_ids == ("DEBIAN-CVE-2024-6119", "CVE-2024-6119")
    assert list(advisory.affected_entries("PyPI", "openssl")) == []


def test_oversized_advisory_record_is_refused() -> None:
    with pytest.raises(ImgbuildError, match=f"all.zip: A has more than {LIMIT} bytes"):
        decode_record(b"{" + b" " * LIMIT, "all.zip: A")
