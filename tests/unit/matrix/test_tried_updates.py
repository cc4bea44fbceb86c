"""Tests storing refused updates and the origin of rows in `updates.json`."""

import datetime

import msgspec
import pytest

from imgbuild.errors import InputError
from imgbuild.matrix import tried_updates
from imgbuild.matrix.tried_updates import DerivedRow, RefusedVersion, TriedUpdates
from tests.support.rows import each_row

DAY = datetime.date(2026, 11, 28)
REFUSED = RefusedVersion(
    package="torch",
    version="2.15.0",
    reasons=("deepspeed 0.19.3 requires torch<2.15",),
    tried=DAY,
    row="settings",
    files="names",
    has={"deepspeed": "0.19.3"},
    newest={"torch": "2.15.0", "deepspeed": "0.19.8"},
    imgbuild="0.1.0",
)


def test_file_of_tried_updates_is_read_back_unchanged(tmp_path):
    updates = TriedUpdates().add_refusal("cu130-trl", REFUSED)
    made = DerivedRow(of="cu130-trl", made=DAY, moved={"trl": "1.16.0"})
    updates = updates.add_row("cu130-trl1.16.0", made, {"torch": "2.11.0"})
    tried_updates.write_updates(tmp_path, updates, tmp_path)
    assert tried_updates.read_updates(tmp_path) == updates
    assert updates.of("cu130-trl") == {("torch", "2.15.0"): REFUSED}
    assert tried_updates.read_updates(tmp_path / "absent") == TriedUpdates()


def test_new_row_removes_refusals_of_its_versions():
    updates = TriedUpdates().add_refusal("a", REFUSED)
    updates = updates.add_refusal("a", msgspec.structs.replace(REFUSED, version="2.16.0"))
    made = DerivedRow(of="a", made=DAY, moved={"torch": "2.15.1"})
    assert list(updates.add_row("b", made, {"torch": "2.15.1"}).of("a")) == [("torch", "2.16.0")]


def test_refused_updates_are_sorted_by_version():
    updates = TriedUpdates()
    for version in ("2.9.0", "2.10.0", "2.8.0"):
        refusal = msgspec.structs.replace(REFUSED, version=version)
        updates = updates.add_refusal("a", refusal)
    assert [item.version for item in updates.refused["a"]] == ["2.8.0", "2.9.0", "2.10.0"]


def test_newest_and_first_row_of_an_update_chain_are_found():
    updates = TriedUpdates(
        rows={
            "a1": DerivedRow(of="a", made=DAY),
            "a2": DerivedRow(of="a1", made=DAY),
            "a3": DerivedRow(of="a2", made=DAY),
        }
    )
    assert updates.newest_descendant("a", ["a", "a1", "a2"]) == "a2"
    assert updates.newest_descendant("a", ["a"]) == "a"  # its row was removed from the matrix
    assert updates.origin_of_row("a3") == "a"
    assert updates.origin_of_row("b") == "b"


def test_lookup_of_circular_update_rows_terminates():
    updates = TriedUpdates(
        rows={"a": DerivedRow(of="b", made=DAY), "b": DerivedRow(of="a", made=DAY)}
    )
    assert updates.newest_descendant("a", ["a", "b"]) == "b"
    assert updates.origin_of_row("a") == "b"


@each_row(
    "text", ["[]", "{", '{"version": 2}', '{"refused": {"a": [{"package": 1}]}}', '{"more": 1}']
)
def test_error_for_a_damaged_updates_file_names_the_file(tmp_path, text):
    (tmp_path / "updates.json").write_text(text)
    with pytest.raises(InputError, match=r"updates\.json is not a valid list of updates") as caught:
        tried_updates.read_updates(tmp_path)
    assert "to try the versions again" in (caught.value.hint or "")


def test_updates_file_that_is_a_link_is_neither_read_nor_written(tmp_path):
    outside = tmp_path / "outside.json"
    outside.write_text('{"version": 1}')
    images = tmp_path / "project/images"
    images.mkdir(parents=True)
    (images / "updates.json").symlink_to(outside)
    with pytest.raises(InputError, match=r"updates\.json"):
        tried_updates.write_updates(images, TriedUpdates().add_refusal("a", REFUSED), images.parent)
    assert outside.read_text() == '{"version": 1}'
