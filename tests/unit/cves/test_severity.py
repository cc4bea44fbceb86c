"""Tests CVSS scores with the examples of the specifications, and terms of advisories."""

from __future__ import annotations

from imgbuild.cves import severity
from imgbuild.cves.severity import Rating
from tests.support.rows import each_row


# From the CVSS v3.1 examples document of FIRST: CVE-2013-1937, CVE-2013-0375, CVE-2014-3566,
# CVE-2012-1516, CVE-2014-0160, CVE-2014-6271, CVE-2013-6014, CVE-2014-9253, CVE-2016-1645.
@each_row(
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
def test_cvss_base_scores_match_the_specification(vector: str, score: float) -> None:
    assert severity.base_score(f"CVSS:3.1/{vector}") == score


# CVE-2002-0392, CVE-2003-0818 and CVE-2003-0062 of the guide to CVSS 2, section 3.3; the examples
# of CVSS 4.0 for CVE-2022-41741, CVE-2020-3549, CVE-2014-0160 and CVE-2021-44228.
@each_row(
    ("vector", "score"),
    [
        ("AV:N/AC:L/Au:N/C:N/I:N/A:C", 7.8),
        ("AV:N/AC:L/Au:N/C:C/I:C/A:C", 10.0),
        ("AV:L/AC:H/Au:N/C:C/I:C/A:C", 6.2),
        ("CVSS:4.0/AV:L/AC:L/AT:P/PR:L/UI:N/VC:H/VI:H/VA:H/SC:N/SI:N/SA:N", 7.3),
        ("CVSS:4.0/AV:N/AC:L/AT:P/PR:N/UI:P/VC:H/VI:H/VA:H/SC:N/SI:N/SA:N", 7.7),
        ("CVSS:4.0/AV:N/AC:L/AT:N/PR:N/UI:N/VC:H/VI:N/VA:N/SC:N/SI:N/SA:N", 8.7),
        ("CVSS:4.0/AV:N/AC:L/AT:N/PR:N/UI:N/VC:H/VI:H/VA:H/SC:H/SI:H/SA:H", 10.0),
    ],
)
def test_base_scores_of_cvss_2_and_4_are_computed(vector: str, score: float) -> None:
    assert severity.base_score(vector) == score


@each_row(
    "vector",
    [
        "",
        "7.5",
        "CVSS:3.1/AV:N",
        "CVSS:3.1/AV:X/AC:L/PR:N/UI:R/S:C/C:L/I:L/A:N",
        "CVSS:4.0/AV:N/AC:L/AT:N/PR:N/UI:N/VC:H/VI:H/VA:H/SC:N/SI:N",
        "CVSS:5.0/AV:N/AC:L/AT:N/PR:N/UI:N/VC:H/VI:H/VA:H/SC:N/SI:N/SA:N",
        "AV:N/AC:L/Au:N/C:N/I:N",
        "CVSS:3.1/AV:N/AC:L/PR:L/UI:N/S:Z/C:N/I:N/A:H",
    ],
)
def test_severity_vectors_in_other_formats_have_no_score(vector: str) -> None:
    assert severity.base_score(vector) is None


def test_cvss_scores_map_to_severity_terms() -> None:
    ratings = [severity.score_rating(score) for score in (0.0, 3.9, 4.0, 6.9, 7.0, 8.9, 9.0)]
    assert ratings == ["low", "low", "medium", "medium", "high", "high", "critical"]
    words = ("MODERATE", "medium**", "unimportant", "not yet assigned", None)
    assert [severity.word_rating(word) for word in words] == [
        "medium", "medium", "low", "unknown", "unknown"
    ]  # fmt: skip
    assert severity.highest_rating([Rating.LOW, Rating.UNKNOWN, Rating.HIGH]) is Rating.HIGH
    assert severity.highest_rating([]) is Rating.UNKNOWN
