"""Tests adding a row to the text of a matrix without other changes."""

from __future__ import annotations

import datetime
import difflib

import msgspec
import pytest

from imgbuild.errors import InputError
from imgbuild.matrix.load import load_matrix, parse_matrix
from imgbuild.matrix.model import Flashinfer
from imgbuild.update import row_text
from imgbuild.update.trial import MatrixRow
from tests.support.matrix_text import VALID_MATRIX
from tests.support.source_code import ROOT

DAY = datetime.date(2026, 11, 28)
TRL = {"trl": "1.16.0", "deepspeed": "0.19.8", "tensordict": "0.15.3"}
REAL = ROOT / "matrix.yaml"


@pytest.fixture(scope="module")
def real():
    return parse_matrix(REAL.read_bytes(), "matrix.yaml")


def _keys(target):
    """The keys of a row that have more than one value."""
    tables = ("requires", "extras", "indexes", "exclude", "drop", "links", "guide", "env", "waive")
    return [key for key in tables if getattr(target, key)]


def updated(matrix, source, pins, **changes):
    """The row `new` created from `source` with updated pins."""
    target = matrix.targets[source]
    moved = msgspec.structs.replace(target, pins={**target.pins, **pins}, as_of=DAY, **changes)
    row = MatrixRow(name="new", target=moved)
    return MatrixRow(name="new", target=row_text.renew_texts(target, source, row, DAY))


def added_lines(before, after, blocks=1):
    """The added lines, which must form `blocks` blocks; no other line may differ."""
    old, new = before.splitlines(), after.splitlines()
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    changed = [code for code in matcher.get_opcodes() if code[0] != "equal"]
    assert [code[0] for code in changed] == ["insert"] * blocks
    return [line for code in changed for line in new[code[3] : code[4]]]


def test_new_row_is_added_below_its_source_without_other_changes(real):
    row = updated(real, "cu130-trl", TRL)
    text = row_text.insert_row(REAL.read_bytes(), "matrix.yaml", "cu130-trl", row, "debian-12")
    lines = added_lines(REAL.read_text(), text.decode())
    assert '      deepspeed: "0.19.8"' in lines
    assert max(map(len, lines)) <= 110
    after = parse_matrix(text, "matrix.yaml")
    names = list(after.targets)
    assert names.index("new") == names.index("cu130-trl") + 1
    assert after.targets["new"] == row.target
    assert {name: after.targets[name] for name in real.targets} == real.targets


def test_rows_in_every_format_can_be_copied(real):
    data = REAL.read_bytes()
    forms = {tuple(sorted(_keys(target))): name for name, target in real.targets.items()}
    assert len(forms) > 8
    for source in forms.values():
        target = real.targets[source]
        package = next(iter(target.pins))
        row = updated(real, source, {package: "999.0"})
        text = row_text.insert_row(data, "matrix.yaml", source, row, target.base)
        assert parse_matrix(text, "matrix.yaml").targets["new"].pins[package] == "999.0"


def test_summary_of_a_new_row_lists_changes_and_missing_tests(real):
    target = updated(real, "cu130-trl", TRL).target
    assert target.tested == (
        "The image was not run. Made of cu130-trl by imgbuild update on 2026-11-28:"
        " trl 1.9.2 to 1.16.0, tensordict 0.13.0 to 0.15.3, deepspeed 0.19.3 to 0.19.8."
        " The audit found no errors on x86_64 and arm64."
    )
    assert not target.recommended
    newer = updated(real, "cu130-vllm0.33.0", {"vllm": "0.34.1"}).target
    assert newer.summary.startswith("vLLM 0.34 on Ray and TRL")
    assert newer.flashinfer.reason.startswith("as in cu130-vllm0.33.0: vLLM 0.33.0 requires")


def test_new_row_is_neither_recommended_nor_retired(real):
    for source in ("cu130-deepspeed", "cu130-vllm0.20.2"):
        row = updated(real, source, {"trl": "1.16.0"})
        base = real.targets[source].base
        text = row_text.insert_row(REAL.read_bytes(), "matrix.yaml", source, row, base)
        assert parse_matrix(text, "matrix.yaml").targets["new"] == row.target
        assert (row.target.recommended, row.target.retired) == ("", "")


def test_new_base_is_written_after_the_base_it_replaces(real):
    base = real.bases["debian-13"]
    newer = tuple(address.replace("20261124", "20261128") for address in base.security)
    dated = msgspec.structs.replace(base, security=newer)
    row = updated(real, "cu130-vllm0.33.0", {"torch": "2.14.1"}, base="debian-13-20261128")
    row = msgspec.structs.replace(row, bases={"debian-13-20261128": dated})
    text = row_text.insert_row(
        REAL.read_bytes(), "matrix.yaml", "cu130-vllm0.33.0", row, "debian-13"
    ).decode()
    added_lines(REAL.read_text(), text, blocks=2)
    after = parse_matrix(text.encode(), "matrix.yaml")
    assert after.bases["debian-13-20261128"] == dated
    assert list(after.bases).index("debian-13-20261128") == list(after.bases).index("debian-13") + 1
    assert "# librdmacm1, with a 64-bit time_t" in text.split("debian-13-20261128:")[1]


def test_last_row_of_a_matrix_without_a_line_break_is_kept():
    matrix = parse_matrix(VALID_MATRIX.encode(), "m.yaml")
    row = updated(matrix, "cu124-vllm", {"trl": "0.19.0"})
    data = VALID_MATRIX.rstrip("\n").encode()
    text = row_text.insert_row(data, "m.yaml", "cu124-vllm", row, "debian-12")
    assert parse_matrix(text, "m.yaml").targets["new"] == row.target
    assert text.startswith(data)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("  cu124-vllm:\n    summary: an old image", "  cu124-vllm: {summary: an old image}"),
        ("targets:\n  cu124-vllm:", "targets:\n  ? cu124-vllm\n  :"),
    ],
)
def test_row_that_shares_a_line_with_other_text_is_refused(old, new):
    matrix = parse_matrix(VALID_MATRIX.encode(), "m.yaml")
    row = updated(matrix, "cu124-vllm", {"trl": "0.19.0"})
    with pytest.raises(InputError) as caught:
        row_text.insert_row(
            VALID_MATRIX.replace(old, new).encode(), "m.yaml", "cu124-vllm", row, "x"
        )
    assert caught.value.exit_code == 2


def test_new_row_whose_text_is_read_differently_is_refused():
    matrix = parse_matrix(VALID_MATRIX.encode(), "m.yaml")
    row = updated(matrix, "cu124-vllm", {"trl": "0.19.0"})
    changed = msgspec.structs.replace(row.target, flashinfer=Flashinfer(mode="jit", reason="R" * 9))
    row = msgspec.structs.replace(row, target=changed)
    with pytest.raises(InputError, match="without changing other values"):
        row_text.insert_row(VALID_MATRIX.encode(), "m.yaml", "cu124-vllm", row, "debian-12")


@pytest.mark.parametrize(
    ("origin", "pins", "taken", "name"),
    [
        ("cu130-trl", {"trl": "1.99.0", "torch": "2.12.0"}, (), "cu130-trl1.99.0"),
        ("cu130-trl", {"torch": "2.12.0"}, (), "cu130-trl-torch2.12.0"),
        ("cu130-trl", {"trl": "1.99.0"}, ("cu130-trl1.99.0",), "cu130-trl1.99.0-trl1.99.0"),
        ("cu130-vllm0.33.0", {"vllm": "0.34.0"}, (), "cu130-vllm0.34.0"),
        ("cu130-vllm0.33.0", {"torch": "2.14.1"}, (), "cu130-vllm0.33.0-torch2.14.1"),
        ("cu128-unsloth2026.10", {"unsloth": "2026.11.2"}, (), "cu128-unsloth2026.11.2"),
        ("cu130-sglang0.5.23", {"sglang": "0.5.24.post1"}, (), "cu130-sglang0.5.24.post1"),
        ("cu130-ray", {"ray": "2.60.0"}, ("cu130-ray2.60.0", "cu130-ray2.60.0-ray2.60.0"),
         "cu130-ray2.60.0-ray2.60.0-2"),
    ],
)  # fmt: skip
def test_names_of_new_rows_follow_existing_names(real, origin, pins, taken, name):
    row = updated(real, origin, pins)
    former = real.targets[origin]
    taken = {*real.targets, *taken}
    assert row_text.new_row_name(origin, former, former, row, taken) == name


def test_name_of_a_new_row_has_a_date_if_only_the_base_changed(real):
    source = "cu130-vllm0.33.0"
    row = updated(real, source, {}, base="debian-13-20261128")
    bases = {"debian-13-20261128": real.bases["debian-13"]}
    row = msgspec.structs.replace(row, bases=bases)
    former = real.targets[source]
    name = row_text.new_row_name(source, former, former, row, real.targets)
    assert name == "cu130-vllm0.33.0-20261128"


def test_matrix_of_this_repository_equals_the_matrix_in_these_tests(real):
    assert load_matrix(REAL).targets == real.targets
