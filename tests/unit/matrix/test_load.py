"""Tests that every class of error in a matrix is reported with place and message."""

from __future__ import annotations

import datetime
import os
from pathlib import Path

import msgspec
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from imgbuild.errors import InputError
from imgbuild.matrix.load import load_matrix, parse_matrix
from imgbuild.matrix.model import Matrix
from tests.support.matrix_text import (
    FILE,
    VALID_MATRIX,
    break_matrix,
    check_broken,
    find_problems,
    only_problem,
)
from tests.support.rows import each_row

REPOSITORY = Path(__file__).parents[3]


# Each row: the replaced text, its replacement (§ marks the place of the problem), and the expected
# problem: path, part of the message, value, part of the expectation, most similar name.
STRUCTURE = {
    "unknown key at the top": (
        "default_index:",
        "§default_indx: main\ndefault_index:",
        ("default_indx", "unknown key", "default_indx", "one of version", "default_index"),
    ),
    "unknown key in a target": (
        "    cuda:",
        "    §cudda: x\n    cuda:",
        ("targets.cu124-vllm.cudda", "unknown key", "cudda", "one of summary", "cuda"),
    ),
    "unknown key far from all": (
        "    cuda:",
        "    §qqq: x\n    cuda:",
        ("targets.cu124-vllm.qqq", "unknown key", "qqq", "one of summary", None),
    ),
    "missing key": (
        "  cu124-vllm:\n    summary: an old image\n",
        "  §cu124-vllm:\n",
        ("targets.cu124-vllm", "key summary is missing", None, "summary: one-line", None),
    ),
    "missing cut-off": (
        (
            '  cu124-vllm:\n    summary: an old image\n    base: debian-12\n    cuda: "12.4"\n'
            "    arch: [x86_64]\n    as_of: 2025-06-20\n"
        ),
        (
            '  §cu124-vllm:\n    summary: an old image\n    base: debian-12\n    cuda: "12.4"\n'
            "    arch: [x86_64]\n"
        ),
        (
            "targets.cu124-vllm",
            "as_of is missing: without a cut-off date, the newest",
            None,
            "as_of: only files uploaded before this day",
            None,
        ),
    ),
    "missing reason": (
        "pip: {reason: people add packages}",
        "§pip: {}",
        ("requires.pip", "key reason is missing", None, "reason: the reason", None),
    ),
    "reason too short": (
        "pip: {reason: people add packages}",
        "pip: {reason: §yes}",
        ("requires.pip.reason", "shorter than 8", "yes", "the reason", None),
    ),
    "a list where a mapping is due": (
        "  pip: {reason: people add packages}",
        "  §- pip",
        ("requires", "not a mapping", "a list", "key: value", None),
    ),
    "text where a list is due": (
        "arch: [x86_64]",
        "arch: §x86_64",
        ("targets.cu124-vllm.arch", "not a list", "x86_64", "[x86_64]", None),
    ),
    "a mapping where text is due": (
        "summary: an old image",
        "summary: §{a: b}",
        ("targets.cu124-vllm.summary", "not text", "a mapping", "one-line description", None),
    ),
    "nothing where text is due": (
        "suite: bookworm",
        "suite:§",
        ("bases.debian-12.suite", "not text", "nothing", "code name", None),
    ),
    "an empty list": (
        "arch: [x86_64]",
        "arch: §[]",
        ("targets.cu124-vllm.arch", "too short", "a list", "at least 1 item", None),
    ),
    "unknown kind of base": (
        "kind: debian",
        "kind: §debain",
        ("bases.debian-12.kind", "unknown kind", "debain", "one of debian, registry", "debian"),
    ),
    "no kind of base": (
        "    kind: debian\n    suite",
        "    §suite",
        ("bases.debian-12", "key kind is missing", None, "one of debian, registry", None),
    ),
}
SCALARS = {
    "unknown architecture": (
        "arch: [x86_64]",
        "arch: [x86_64, §amr64]",
        ("targets.cu124-vllm.arch[1]", "unknown value", "amr64", "x86_64, arm64", "arm64"),
    ),
    "another spelling of an architecture": (
        "arch: [x86_64]",
        "arch: [§amd64]",
        ("targets.cu124-vllm.arch[0]", "unknown value", "amd64", "x86_64, arm64", "x86_64"),
    ),
    "unknown architecture in exclude": (
        "exclude: {arm64:",
        "exclude: {§aarch64:",
        (
            "targets.cu124-vllm.exclude.aarch64",
            "unknown value",
            "aarch64",
            "x86_64, arm64",
            "arm64",
        ),
    ),
    "unknown mode": (
        'mode: "off"',
        "mode: §jitt",
        ("targets.cu124-vllm.flashinfer.mode", "unknown value", "jitt", "one of", "jit"),
    ),
    "a source that is neither address nor file": (
        "reason: the newer engine}",
        "reason: the newer engine, source: [docs/x.md, §see the manual]}",
        (
            "targets.cu124-vllm.env.VLLM_USE_V1.source[1]",
            "the text does not have the expected format",
            "see the manual",
            "PACKAGE==VERSION PATH:LINE",
            None,
        ),
    ),
    "a source in a wheel without its line": (
        "reason: the newer engine}",
        "reason: the newer engine, source: [§vllm==0.8.5 vllm/envs.py]}",
        (
            "targets.cu124-vllm.env.VLLM_USE_V1.source[0]",
            "the text does not have the expected format",
            "vllm==0.8.5 vllm/envs.py",
            "PACKAGE==VERSION PATH:LINE",
            None,
        ),
    ),
    "unknown version of the format": (
        "version: 1",
        "version: §2",
        ("version", "unknown value", "2", "1", None),
    ),
    "a number in quotes": (
        "groups: 4",
        'groups: §"4"',
        ("layers.groups", "not a whole number", '"4"', "from 1 to 16", None),
    ),
    "a number in another base": (
        "own_from: 5000000",
        "own_from: §0x10",
        ("layers.own_from", "not a whole number", "0x10", "minimum size, in bytes", None),
    ),
    "a number too small": (
        "own_from: 5000000",
        "own_from: §-1",
        ("layers.own_from", "below 0", "-1", "of at least 0", None),
    ),
    "a number too big": (
        "groups: 4",
        "groups: §17",
        ("layers.groups", "above 16", "17", "from 1 to 16", None),
    ),
    "no truth value": (
        "main: {}",
        "main: {flat: §yes}",
        ("indexes.main.flat", "not a boolean", "yes", "true or false", None),
    ),
    "no date": (
        "as_of: 2025-06-20",
        "as_of: §20 June",
        ("targets.cu124-vllm.as_of", "not a date", "20 June", "YYYY-MM-DD", None),
    ),
    "no such day": (
        "as_of: 2025-06-20",
        "as_of: §2025-06-31",
        ("targets.cu124-vllm.as_of", "no such day", "2025-06-31", "YYYY-MM-DD", None),
    ),
    "a target that is no tag": (
        "  cu124-vllm:",
        "  §CU124_:",
        ("targets.CU124_", "expected format", "CU124_", "valid as an image tag", None),
    ),
    "a package that is not normalized": (
        "setuptools: {reason",
        "§Setup_Tools: {reason",
        ("targets.cu124-vllm.requires.Setup_Tools", "expected", "Setup_Tools", "PEP 503", None),
    ),
    "a version that is a range": (
        'torch: "2.6.0"',
        'torch: §">=2.6"',
        ("targets.cu124-vllm.pins.torch", "expected format", '">=2.6"', "an exact version", None),
    ),
    "text with a newline behind it": (
        'torch: "2.6.0"',
        'torch: §"2.6.0\\n"',
        (
            "targets.cu124-vllm.pins.torch",
            "expected format",
            '"2.6.0\n"',
            "an exact version",
            None,
        ),
    ),
}


@each_row("name", [*STRUCTURE])
def test_structure_of_the_matrix_is_checked(name: str) -> None:
    check_broken(*STRUCTURE[name])


@each_row("name", [*SCALARS])
def test_scalar_types_of_the_matrix_are_checked(name: str) -> None:
    check_broken(*SCALARS[name])


def test_valid_matrix_is_loaded() -> None:
    matrix = parse_matrix(VALID_MATRIX.encode(), FILE)
    assert matrix.targets["cu124-vllm"].as_of == datetime.date(2025, 6, 20)
    assert matrix.indexes["main"].url is None


def test_unquoted_scalars_in_the_matrix_are_read_as_text() -> None:
    plain = VALID_MATRIX.replace('torch: "2.6.0"', "torch: 2.10").replace(
        'cuda: "12.4"', "cuda: 12.4"
    )
    plain = plain.replace('mode: "off"', "mode: off").replace('value: "1"', "value: 0x10")
    plain = plain.replace("summary: an old image", "summary: 1e3")
    target = parse_matrix(plain.encode(), FILE).targets["cu124-vllm"]
    assert target.pins["torch"] == "2.10"
    assert (target.cuda, target.flashinfer.mode, target.summary) == ("12.4", "off", "1e3")
    assert target.env["VLLM_USE_V1"].value == "0x10"


def test_all_problems_of_a_matrix_are_reported_in_file_order() -> None:
    text = (
        VALID_MATRIX.replace("default_index: main", "default_index: mian")
        .replace("suite: bookworm", "suit: bookworm")
        .replace("uid: 1000", "uid: zero")
        .replace("base: debian-12", "base: debian-13")
        .replace("arch: [x86_64]", "arch: [x86]")
    )
    matrix_problems = find_problems(text)
    assert [(problem.path, problem.nearest) for problem in matrix_problems] == [
        ("bases.debian-12.suit", "suite"),  # unknown keys are first
        ("default_index", "main"),
        ("image.user.uid", None),
        ("targets.cu124-vllm.base", "debian-12"),
        ("targets.cu124-vllm.arch[0]", "x86_64"),
    ]
    places = [(problem.line, problem.column) for problem in matrix_problems[1:]]
    assert places == sorted(places, key=lambda place: (place[0] or 0, place[1] or 0))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("    pins:\n      torch:", "    §pinns:\n      torch:"),
        ("    pins:\n      torch:", "    §pinns: [torch]\n    waived:\n      torch:"),
        ("  groups: 4", "  §group: four"),
    ],
)
def test_consequences_of_a_misspelled_key_are_not_reported(old: str, new: str) -> None:
    text, line, column = break_matrix(old, new)
    matrix_problems = [
        problem for problem in find_problems(text) if problem.path != "targets.cu124-vllm.waived"
    ]
    assert [(problem.message, problem.line, problem.column) for problem in matrix_problems] == [
        ("unknown key", line, column)
    ]


def test_value_of_a_misspelled_key_is_still_checked() -> None:
    text = VALID_MATRIX.replace(
        '    pins:\n      torch: "2.6.0"', '    pinns:\n      torch: "2.06.0"'
    )
    assert [problem.path for problem in find_problems(text)] == [
        "targets.cu124-vllm.pinns",
        "targets.cu124-vllm.pins.torch",
    ]


def test_problem_in_a_matrix_has_its_source_line() -> None:
    text, line, _ = break_matrix("base: debian-12", "base: §debain-12")
    problem = only_problem(text)
    assert problem.source == text.splitlines()[line - 1] == "    base: debain-12"


def test_text_of_a_matrix_problem_has_one_line() -> None:
    text, line, column = break_matrix("base: debian-12", "base: §debain-12")
    assert str(only_problem(text)) == (
        f"bad.yaml:{line}:{column}: targets.cu124-vllm.base: unknown base (found debain-12);"
        " expected one of debian-12; did you mean debian-12?"
    )


def test_unreadable_matrix_is_reported(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file") as caught:
        load_matrix(tmp_path / "none.yaml")
    assert caught.value.hint is not None
    assert "--matrix" in caught.value.hint


def test_matrix_of_this_project_is_read_like_by_other_yaml_parsers() -> None:
    path = REPOSITORY / "matrix.yaml"
    plain = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert parse_matrix(path.read_bytes(), str(path)) == msgspec.convert(plain, Matrix)


def test_wheel_folder_is_relative_to_the_matrix(tmp_path: Path) -> None:
    text = VALID_MATRIX.replace("  main: {}\n", "  main: {}\n  own: {url: 'file:a b/{cuda_tag}'}\n")
    (tmp_path / "matrix.yaml").write_text(text, encoding="utf-8")
    indexes = load_matrix(tmp_path / "matrix.yaml").indexes
    assert indexes["own"].url == f"file://{tmp_path}/a%20b/{{cuda_tag}}/"
    assert indexes["main"].url is None


def test_wheel_folder_below_a_path_that_is_not_utf8_is_accepted(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"wh\xe9re")
    folder.mkdir()
    text = VALID_MATRIX.replace("  main: {}\n", "  main: {}\n  own: {url: 'file:wheels'}\n")
    (folder / "matrix.yaml").write_text(text, encoding="utf-8")
    assert (
        load_matrix(folder / "matrix.yaml").indexes["own"].url
        == f"file://{tmp_path}/wh%E9re/wheels/"
    )


LINES = VALID_MATRIX.splitlines()


@settings(deadline=None, max_examples=50)
@given(
    st.integers(0, len(LINES) - 1),
    st.sampled_from(["drop", "twice", "indent", "outdent", "comma", "value"]),
    st.text(max_size=8),
)
def test_changed_matrix_is_read_or_refused_with_a_location(
    number: int, change: str, new: str
) -> None:
    line = LINES[number]
    changed = {
        "drop": [],
        "twice": [line, line],
        "indent": ["  " + line],
        "outdent": [line[1:]],
        "comma": [line.replace(",", new)],
        "value": [line.split(":", maxsplit=1)[0] + ": " + new],
    }[change]
    text = "\n".join([*LINES[:number], *changed, *LINES[number + 1 :]])
    refusal = None
    try:
        assert isinstance(parse_matrix(text.encode("utf-8", "surrogatepass"), FILE), Matrix)
    except InputError as error:
        refusal = error
    if refusal is not None:
        assert refusal.problems
        assert all(problem.line for problem in refusal.problems), refusal.problems
