"""Tests that canonical JSON has one form and one item per line, and that errors name the file."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from imgbuild import codec
from imgbuild.errors import InputError

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


class Thing(msgspec.Struct, frozen=True):
    name: str
    size: int = 0


@given(JSON)
def test_encoded_value_is_decoded_unchanged(value):
    assert json.loads(codec.encode(value)) == value
    assert json.loads(codec.encode_compact(value)) == value


@given(st.dictionaries(st.text(), st.integers()))
def test_order_of_keys_does_not_change_the_encoded_document(value):
    turned = dict(reversed(value.items()))
    assert codec.encode(turned) == codec.encode(value)
    assert codec.encode_compact(turned) == codec.encode_compact(value)


@pytest.mark.parametrize("kind", [list, tuple])
def test_changed_item_changes_one_line_of_the_document(kind):
    old, new = (kind([Thing("a", 1), Thing("b", size), Thing("c", 3)]) for size in (2, 9))
    before = codec.encode({"things": old}).splitlines()
    after = codec.encode({"things": new}).splitlines()
    assert len(before) == len(after) == 7
    assert sum(old_line != other for old_line, other in zip(before, after, strict=True)) == 1


def test_error_for_a_wrong_type_names_the_file_and_the_path():
    with pytest.raises(InputError) as caught:
        codec.decode(b'{"name": 1}', Thing, file="thing.json")
    assert "thing.json" in caught.value.message
    assert "$.name" in str(caught.value.problems[0])


def test_broken_json_is_an_input_error():
    with pytest.raises(InputError):
        codec.decode(b"{", Thing, file="thing.json")


@pytest.mark.parametrize(
    ("data", "result"),
    [
        (b'{"name": "\xff\xfe"}', "a string in the file is not UTF-8"),
        (b'{"name": "a", "more": ' + b"[" * 1_000_000, "nested too deeply"),
    ],
)
def test_error_for_invalid_json_names_the_file(data, result, tmp_path):
    (tmp_path / "thing.json").write_bytes(data)
    with pytest.raises(InputError, match=r"thing\.json is not a valid thing$") as caught:
        codec.read_document(tmp_path / "thing.json", Thing, what="thing", hint="mend it")
    assert result in str(caught.value.problems[0])
    assert caught.value.hint == "mend it"


def test_missing_document_is_an_input_error(tmp_path):
    with pytest.raises(InputError, match="cannot read"):
        codec.read_document(tmp_path / "absent.json", Thing)


def test_unchanged_document_is_not_written_again(tmp_path):
    path = tmp_path / "folder" / "thing.json"
    assert codec.write_document(path, Thing("a"))
    stamp = path.stat().st_mtime_ns
    assert not codec.write_document(path, Thing("a"))
    assert path.stat().st_mtime_ns == stamp
    assert codec.write_document(path, Thing("b"))
    assert codec.read_document(path, Thing) == Thing("b")
    assert [item.name for item in path.parent.iterdir()] == ["thing.json"]


def test_error_for_an_unwritable_file_omits_the_temporary_name(tmp_path):
    place = tmp_path / ("a" * 250)  # the name of the temporary file is longer than a name can be
    with pytest.raises(OSError, match="File name too long") as caught:
        codec.write_document(place, {})
    assert caught.value.filename == str(place)
