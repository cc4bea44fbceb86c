from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imgbuild.deb.debian_version import compare_versions, satisfies_relation
from tests.support.rows import each_row

# From Debian policy 5.6.12 and from the versions of real packages, oldest first.
ASCENDING = [
    ["1.0~~", "1.0~~a", "1.0~", "1.0", "1.0a", "1.0+b1", "1.0.1"],
    ["0.9", "0.10", "0.010.1", "1:0.1"],
    ["2.36-9", "2.36-9+deb12u9", "2.36-9+deb12u10", "2.36-10"],
    ["1.0-1", "1.0-1.1", "1.0-2~bpo12+1", "1.0-2"],
    ["1.2.3~rc1-1", "1.2.3-1", "1.2.3a-1", "1.2.3+dfsg-1"],
]

VERSIONS = st.from_regex(
    r"([0-9]:)?[0-9][0-9A-Za-z.+~]{0,6}(-[0-9A-Za-z.+~]{1,4})?", fullmatch=True
)


@each_row("versions", ASCENDING, ids=lambda versions: versions[0])
def test_debian_versions_are_ordered(versions: list[str]) -> None:
    for i, left in enumerate(versions):
        for j, right in enumerate(versions):
            assert compare_versions(left, right) == (i > j) - (i < j), (left, right)


@each_row(("left", "right"), [("1.0", "0:1.0"), ("1.0", "1.0-0"), ("1.00", "1.0"), ("1.a0", "1.a")])
def test_equal_spellings_of_a_debian_version_are_equal(left: str, right: str) -> None:
    assert compare_versions(left, right) == 0


@given(VERSIONS, VERSIONS)
def test_debian_version_comparison_is_antisymmetric(left: str, right: str) -> None:
    assert compare_versions(left, right) == -compare_versions(right, left)


@given(VERSIONS)
def test_tilde_sorts_before_the_end_of_a_debian_version(version: str) -> None:
    assert compare_versions(version + "~", version) == -1


@each_row(
    ("version", "relation", "bound", "expected"),
    [
        ("1.0", "<<", "1.0", False),
        ("1.0", "<=", "1.0", True),
        ("1.0", "=", "1.0-1", False),
        ("1.1", ">=", "1.0", True),
        ("1.0", ">>", "1.0~", True),
    ],
)
def test_debian_version_relations_are_evaluated(
    version: str, relation: str, bound: str, *, expected: bool
) -> None:
    assert satisfies_relation(version, relation, bound) is expected


def test_unknown_debian_version_relation_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown version relation '<'"):
        satisfies_relation("1", "<", "2")
