"""Tests merging records of layers and wheels, and the error for conflicting ones."""

import pytest

from imgbuild import codec
from imgbuild.errors import IntegrityError, LockStale
from imgbuild.oci.layer import LayerRecord
from imgbuild.plan import records
from imgbuild.plan.records import RecordedLayers, WheelFacts

ID = "sha256:" + "1" * 64
OTHER = "sha256:" + "2" * 64


def layer(size):
    return LayerRecord(digest=ID, size=size, diff_id=ID, unpacked=size)


def test_layer_records_are_read_back_sorted(tmp_path):
    facts = WheelFacts(file="a.whl", files=1, unpacked=2)
    merged = records.merge_records(
        RecordedLayers(layers={OTHER: layer(1)}),
        [RecordedLayers(layers={ID: layer(2)}, wheels={"a" * 64: facts})],
    )
    codec.write_document(records.records_path(tmp_path), merged)
    assert list(merged.layers) == [ID, OTHER]
    assert records.read_records(tmp_path) == merged


def test_missing_file_of_layer_records_is_treated_as_empty(tmp_path):
    assert records.read_records(tmp_path) == RecordedLayers()


def test_equal_layer_records_are_merged():
    layer_records = RecordedLayers(layers={ID: layer(1)})
    assert records.merge_records(layer_records, [layer_records]) == layer_records


def test_conflicting_layer_records_are_an_error():
    with pytest.raises(IntegrityError, match="was recorded as"):
        records.merge_records(
            RecordedLayers(layers={ID: layer(1)}), [RecordedLayers(layers={ID: layer(2)})]
        )


def test_layer_records_in_an_unsupported_format_are_an_error(tmp_path):
    codec.write_document(records.records_path(tmp_path), RecordedLayers(format=9))
    with pytest.raises(LockStale, match="format 9"):
        records.read_records(tmp_path)
