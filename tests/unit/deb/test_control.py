from __future__ import annotations

import pytest

from imgbuild.deb.control import DebRelation, parse_clauses, parse_fields, parse_paragraphs
from tests.support.rows import each_row


def test_control_fields_keep_order_and_continuation_lines() -> None:
    read = parse_fields(
        "Package: demo\nDescription: short \n long\n .\n more\nConffiles:\n /etc/x abc\n"
    )
    assert list(read) == ["Package", "Description", "Conffiles"]
    assert read["Description"] == "short \n long\n .\n more"  # dpkg also keeps trailing spaces
    assert read["Conffiles"] == "\n /etc/x abc"


def test_control_paragraphs_are_split_at_empty_lines() -> None:
    parsed = list(parse_paragraphs("A: 1\n\n\nA: 2\nB: x\n\n"))
    assert parsed == [{"A": "1"}, {"A": "2", "B": "x"}]


def test_invalid_control_line_is_refused() -> None:
    with pytest.raises(ValueError, match="not a control file field: 'nonsense'"):
        parse_fields("Package: demo\nnonsense\n")


def test_debian_package_relations_are_parsed() -> None:
    read = parse_clauses("libc6 (>= 2.36), debconf (>= 0.5) | debconf-2.0,\n python3:any (<<3.12)")
    assert read == (
        (DebRelation("libc6", ">=", "2.36"),),
        (DebRelation("debconf", ">=", "0.5"), DebRelation("debconf-2.0")),
        (DebRelation("python3", "<<", "3.12"),),
    )
    assert parse_clauses("") == ()
    assert str(read[0][0]) == "libc6 (>= 2.36)"


@each_row("text", ["libc6 (2.36)", "LibC", "a (>= 1", "a || b"])
def test_invalid_debian_package_relation_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="invalid package relation"):
        parse_clauses(text)
