"""Tests reading and writing RECORD."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imgbuild.errors import IntegrityError
from imgbuild.wheel.record import RecordRow, read_record, record_digest, strong_digest, write_record
from tests.support.rows import each_row

PATHS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1)


@given(
    st.dictionaries(PATHS, st.tuples(st.sampled_from(["", "sha256=x"]), st.integers(0, 10**20 - 1)))
)
def test_record_file_is_read_back_unchanged(files: dict[str, tuple[str, int]]) -> None:
    rows = {path: RecordRow(path=path, digest=of, size=size) for path, (of, size) in files.items()}
    text = write_record(rows.values())
    assert read_record(text.decode(), "w") == rows
    assert write_record(reversed(rows.values())) == text


def test_record_file_is_written_as_text() -> None:
    rows = [
        RecordRow(path="b,c", digest="sha256=x", size=1),
        RecordRow(path="B", digest="", size=None),
        RecordRow(path='a"', digest="", size=0),
    ]
    assert write_record(rows) == b'B,,\n"a""",,0\n"b,c",sha256=x,1\n'


def test_record_file_with_windows_newlines_and_empty_lines_is_accepted() -> None:
    rows = read_record("a,sha256=x,1\r\n\r\nb,,\r\n", "w")
    assert rows["a"] == RecordRow(path="a", digest="sha256=x", size=1)
    assert rows["b"].size is None


def test_weak_digests_in_a_record_file_are_ignored() -> None:
    rows = read_record("a,sha256=x,1\nb,md5=x,1\nc,sha1=x,1\nd,,\ne,sha384=y,1\n", "w")
    digests = {path: strong_digest(rows, path) for path in "abcdef"}
    assert digests == {"a": "sha256=x", "b": None, "c": None, "d": None, "e": "sha384=y", "f": None}


def test_digest_in_a_record_file_matches_the_specification() -> None:
    """The expected value is the SHA-256 of empty content in RECORD files of other tools."""
    assert record_digest([]) == "sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU"
    assert record_digest([b"a", b"bc"]) == record_digest([b"abc"])


@each_row("text", ["a\n", "a,b,c,d\n", "a,b,x\n", 'a,"b"c,1\n', "a,b,-1\n"])
def test_invalid_record_files_are_refused(text: str) -> None:
    with pytest.raises(IntegrityError, match=r"w\.whl.*RECORD"):
        read_record(text, "w.whl")
