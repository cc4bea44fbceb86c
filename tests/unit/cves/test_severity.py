"""Scores of CVSS 3 against the examples of its specification, and words of advisories."""

from __future__ import annotations

import pytest

from imgbuild.cves import severity
from imgbuild.cves.severity import Rating


# From the CVSS v3.1 examples document of FIRST: CVE-2013-1937, CVE-2013-0375, CVE-2014-3566,
# CVE-2012-1516, CVE-2014-0160, CVE-2014-6271, CVE-2013-6014, CVE-2014-9253, CVE-2016-1645.
@pytest.mark.parametrize(
    ("vector", "score"),
    [
        ("AV:N/AC:L/PR:N/UI:R/S:C/C:L/I:L/A:N", 6.1),
        ("AV:N/AC:L/PR:L/UI:N/S:C/C:L/I:L/A:N", 6.4),
        ("AV:N/AC:H/PR:N/UI:R/S:U/C:L/I:N/A:N", 3.1),
        ("AV:N/AC:L/PR:L/UI:N/S:C/C:H/I:H/A:H", 9.9),
        ("AV:N/AC:L/PR:N/UI:N/S:U/C:H/I:N/A:N", 7.5),
        ("AV:N/AC:L/PR:N/UI:N/S:U/C:H/I:H/A:H", 9.8),
        ("AV:A/AC:L/PR:N/UI:N/S:C/C:H/I:N/A:H", 9.3),
        ("AV:N/AC:L/PR:L/UI:R/S:C/C:L/I:L/A:N", 5.4),
        ("AV:N/AC:L/PR:N/UI:R/S:U/C:H/I:H/A:H", 8.8),
        ("AV:P/AC:H/PR:H/UI:R/S:U/C:N/I:N/A:N", 0.0),
    ],
)
def test_base_scores_are_those_of_the_specification(vector: str, score: float) -> None:
    assert severity.base_score(f"CVSS:3.1/{vector}") == score


@pytest.mark.parametrize(
    "vector",
    [
        "",
        "7.5",
        "CVSS:3.1/AV:N",
        "CVSS:3.1/AV:X/AC:L/PR:N/UI:R/S:C/C:L/I:L/A:N",
        "CVSS:4.0/AV:N/AC:L/AT:N/PR:N/UI:N/VC:H/VI:H/VA:H/SC:N/SI:N/SA:N",
        "CVSS:3.1/AV:N/AC:L/PR:L/UI:N/S:Z/C:N/I:N/A:H",
    ],
)
def test_another_form_has_no_score(vector: str) -> None:
    assert severity.base_score(vector) is None


def test_bounds_and_words() -> None:
    found = [severity.of_score(score) for score in (0.0, 3.9, 4.0, 6.9, 7.0, 8.9, 9.0)]
    assert found == ["low", "low", "medium", "medium", "high", "high", "critical"]
    words = ("MODERATE", "medium**", "unimportant", "not yet assigned", None)
    assert [severity.of_word(word) for word in words] == [
        "medium", "medium", "low", "unknown", "unknown"
    ]  # fmt: skip
    assert severity.highest([Rating.LOW, Rating.UNKNOWN, Rating.HIGH]) is Rating.HIGH
    assert severity.highest([]) is Rating.UNKNOWN
