"""Tests selecting targets on the command line, and the error messages."""

from __future__ import annotations

import msgspec
import pytest

from imgbuild.cli._output import align_columns
from imgbuild.errors import InputError, NoSolution, NothingSelected
from imgbuild.matrix.load import load_matrix, parse_matrix
from imgbuild.matrix.model import Matrix
from imgbuild.matrix.select import excluded_arches, select_targets
from imgbuild.show.table import create_rows, markdown_lines, table_cells
from imgbuild.values import Arch
from tests.support.matrix_text import FILE, VALID_MATRIX
from tests.support.source_code import ROOT

X86, ARM = Arch.X86_64, Arch.ARM64


@pytest.fixture
def matrix() -> Matrix:
    """A matrix of cu124-vllm (x86_64), cu130-vllm (both) and gh200 (arm64), in this order."""
    head, old = VALID_MATRIX.split("  cu124-vllm:\n")
    new = old.replace("arch: [x86_64]", "arch: [x86_64, arm64]").replace("12.4", "13.0")
    new = new.replace("    exclude: {arm64: no wheel for aarch64}\n", "")
    arm = new.replace("[x86_64, arm64]", "[arm64]").replace("0.8.5.post1", "0.31.0")
    source = f"{head}  cu124-vllm:\n{old}  cu130-vllm:\n{new}  gh200:\n{arm}"
    return parse_matrix(source.encode(), FILE)


def chosen(
    matrix: Matrix, *patterns: str, everything: bool = False, arches: tuple[Arch, ...] = ()
) -> list[tuple[str, tuple[Arch, ...]]]:
    selection = select_targets(matrix, patterns, everything=everything, arches=arches)
    assert all(matrix.targets[item.name] is item.target for item in selection)
    return [(item.name, item.arches) for item in selection]


def test_single_target_is_selected_by_name(matrix: Matrix) -> None:
    assert chosen(matrix, "cu130-vllm") == [("cu130-vllm", (X86, ARM))]


def test_selected_targets_are_in_matrix_order_without_duplicates(matrix: Matrix) -> None:
    selection = chosen(matrix, "gh200", "cu1*", "cu124-vllm")
    assert [name for name, _ in selection] == ["cu124-vllm", "cu130-vllm", "gh200"]


@pytest.mark.parametrize("pattern", ["*-vllm", "cu1[23]?-vllm", "cu1*"])
def test_pattern_selects_matching_targets(matrix: Matrix, pattern: str) -> None:
    assert [name for name, _ in chosen(matrix, pattern)] == ["cu124-vllm", "cu130-vllm"]


def test_patterns_are_case_sensitive(matrix: Matrix) -> None:
    with pytest.raises(NothingSelected):
        chosen(matrix, "CU1*")


def test_all_option_selects_every_target(matrix: Matrix) -> None:
    assert len(chosen(matrix, everything=True)) == 3


def test_architecture_option_restricts_the_selected_targets(matrix: Matrix) -> None:
    assert chosen(matrix, "cu130-vllm", arches=(ARM,)) == [("cu130-vllm", (ARM,))]


def test_architectures_are_in_the_order_of_the_target(matrix: Matrix) -> None:
    assert chosen(matrix, "cu130-vllm", arches=(ARM, X86)) == [("cu130-vllm", (X86, ARM))]


def test_unknown_target_name_is_refused(matrix: Matrix) -> None:
    with pytest.raises(NothingSelected, match="no target matches cu124vllm") as caught:
        chosen(matrix, "cu130-vllm", "cu124vllm")
    hint = "did you mean cu124-vllm or cu130-vllm? `imgbuild list` shows all targets"
    assert (caught.value.hint, caught.value.exit_code) == (hint, 3)


def test_missing_target_name_is_refused(matrix: Matrix) -> None:
    with pytest.raises(NothingSelected, match="no target was selected") as caught:
        chosen(matrix)
    listed = ", ".join(matrix.targets)
    assert caught.value.hint == (
        f"specify a target ({listed}), or pass --all; `imgbuild list` shows all targets"
    )


def test_target_name_can_be_omitted_if_only_one_target_exists(matrix: Matrix) -> None:
    name = next(iter(matrix.targets))
    alone = msgspec.structs.replace(matrix, targets={name: matrix.targets[name]})
    assert {item[0] for item in chosen(alone)} == {name}


def test_all_option_with_a_target_name_is_refused(matrix: Matrix) -> None:
    with pytest.raises(InputError, match="cannot be combined"):
        chosen(matrix, "gh200", everything=True)


def test_excluded_architecture_is_refused_with_reason(matrix: Matrix) -> None:
    with pytest.raises(NoSolution, match="cu124-vllm is not available on arm64") as caught:
        chosen(matrix, "cu124-vllm", arches=(X86, ARM))
    assert caught.value.reasons == ("cu124-vllm on arm64: no wheel for aarch64",)
    assert caught.value.nearest == (
        (
            "the target cu130-vllm on arm64: CUDA 13.0, torch 2.6.0, vllm 0.8.5.post1, trl 0.18.2"
            "; needs torch from the index torch"
        ),
    )
    assert caught.value.hint == "targets on arm64: cu130-vllm, gh200"
    assert caught.value.exit_code == 8


@pytest.mark.parametrize(
    ("name", "arch", "near"),
    [
        ("cu124-vllm", ARM, "cu130-verl0.9"),
        ("cu128-vllm", ARM, "cu128-vllm-arm64"),
        ("cu126-trl-arm64", X86, "cu126-vllm"),
    ],
)
def test_most_similar_target_name_is_suggested(name: str, arch: Arch, near: str) -> None:
    with pytest.raises(NoSolution) as caught:
        select_targets(load_matrix(ROOT / "matrix.yaml"), [name], everything=False, arches=[arch])
    (result,) = caught.value.nearest
    assert result.startswith(f"the target {near} on {arch}: CUDA ")


def test_architecture_that_the_target_lacks_is_refused(matrix: Matrix) -> None:
    with pytest.raises(NoSolution) as caught:
        chosen(matrix, "*", "gh200", arches=(X86,))
    assert caught.value.reasons == ("gh200 on x86_64: the matrix lists only arm64 for this target",)


@pytest.mark.parametrize("everything", [True, False])
def test_wildcard_skips_targets_without_the_architecture(
    matrix: Matrix, *, everything: bool
) -> None:
    patterns = () if everything else ("*",)
    selection = chosen(matrix, *patterns, everything=everything, arches=(ARM,))
    assert selection == [("cu130-vllm", (ARM,)), ("gh200", (ARM,))]
    assert excluded_arches(matrix, patterns, everything=everything, arches=(ARM,)) == (
        "skipping cu124-vllm on arm64: no wheel for aarch64",
    )
    assert excluded_arches(matrix, patterns, everything=everything, arches=()) == ()


def test_wildcard_that_leaves_no_targets_is_refused(matrix: Matrix) -> None:
    with pytest.raises(NoSolution) as caught:
        chosen(matrix, "cu124*", arches=(ARM,))
    assert caught.value.reasons == ("cu124-vllm on arm64: no wheel for aarch64",)


def test_target_table_has_a_column_for_each_pinned_package(matrix: Matrix) -> None:
    table_rows = create_rows(matrix, select_targets(matrix, ["cu1*"], everything=False, arches=()))
    assert [" ".join(line.split()) for line in align_columns(table_cells(table_rows))] == [
        "target CUDA Python base torch vllm trl flashinfer arch as of",
        "cu124-vllm 12.4 3.11 debian-12 2.6.0 0.8.5.post1 0.18.2 off x86_64 2025-06-20",
        "cu130-vllm 13.0 3.11 debian-12 2.6.0 0.8.5.post1 0.18.2 off x86_64, arm64 2025-06-20",
    ]
    lines = align_columns(table_cells(table_rows))
    heads = ("as of", "2025", "2025")
    assert len({line.index(word) for line, word in zip(lines, heads, strict=True)}) == 1


def test_markdown_table_lists_targets(matrix: Matrix) -> None:
    table_rows = create_rows(matrix, select_targets(matrix, ["gh200"], everything=False, arches=()))
    assert markdown_lines(table_rows) == [
        "| target | CUDA | Python | base | torch | vllm | trl | flashinfer | arch | as of |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        "| gh200 | 13.0 | 3.11 | debian-12 | 2.6.0 | 0.31.0 | 0.18.2 | off | arm64 | 2025-06-20 |",
    ]
