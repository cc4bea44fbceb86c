"""Tests that errors mark the line and place of a problem and print the likely cause."""

from __future__ import annotations

import importlib
import traceback

import pytest

from imgbuild.cli._main import WIDTH, problem_excerpt, report_error
from imgbuild.errors import InputProblem, NoSolution
from imgbuild.solve.sdist_wheel import build_failure
from tests.support.inprocess_project import TARGET, write_project


def problem(source: str, value: str | None, marked_text: str) -> InputProblem:
    return InputProblem(
        file="m.yaml",
        message="wrong",
        line=12,
        column=source.index(marked_text) + 1,
        value=value,
        source=source,
    )


def test_carets_mark_the_invalid_value() -> None:
    assert problem_excerpt(problem("    pinns:", "pinns", "pinns")) == [
        "   |",
        "12 |     pinns:",
        "   |     ^^^^^",
    ]


def test_single_caret_marks_the_start_of_a_derived_value() -> None:
    assert problem_excerpt(problem("a: [1, 2]", "a list", "[")) == [
        "   |",
        "12 | a: [1, 2]",
        "   |    ^",
    ]


def test_carets_stay_aligned_with_tabs_and_control_characters() -> None:
    assert problem_excerpt(problem("\ta\x1b: b", "b", "b"))[1:] == [
        "12 | \ta\\x1b: b",
        "   | \t       ^",
    ]


def test_excerpt_of_a_long_line_is_cut_around_the_error() -> None:
    source = "row: {" + "x" * 300 + ", wrong: 1, " + "y" * 300 + "}"
    _, line, carets = problem_excerpt(problem(source, "wrong", "wrong"))
    assert line[carets.index("^") : carets.rindex("^") + 1] == "wrong"
    assert len(line) <= WIDTH + 5


def test_error_without_a_source_line_has_no_excerpt() -> None:
    assert problem_excerpt(InputProblem(file="m.yaml", message="wrong", line=3, column=1)) == []


def test_error_in_the_matrix_shows_its_source_line_on_stderr(
    imgbuild, tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sample = write_project(tmp_path)
    sample.edit("    summary: an old image\n", "    summaryy: an old image\n")
    done = imgbuild("show", TARGET)
    assert (done.status, done.stdout) == (2, "")
    lines = done.stderr.splitlines()
    assert lines[0].endswith("matrix.yaml has 1 problem")
    assert lines[3].endswith(" |     summaryy: an old image")
    assert lines[4].endswith(" |     ^^^^^^^^")


def test_a_failed_build_ends_with_its_likely_cause(capsys) -> None:
    """The failed build of an sdist ends with a traceback of Python."""
    with pytest.raises(ModuleNotFoundError) as failure:
        importlib.import_module("acme_slots")
    output = "".join(traceback.format_exception(failure.value))
    assert report_error(build_failure("acme", "1.0", output)) == NoSolution.exit_code
    last = capsys.readouterr().err.strip().rpartition("\n")[2]
    assert last.startswith("IMG903: acme_slots is not installed")
    assert "; cure: " in last


def test_failed_build_without_known_cause_prints_no_cause(capsys) -> None:
    report_error(build_failure("acme", "1.0", "slots: 3"))
    assert "cure: " not in capsys.readouterr().err


def test_each_reason_starts_with_because_but_omitted_steps_do_not(capsys) -> None:
    report_error(NoSolution("no set", reasons=("a needs b", "… 3 steps …", "b is missing")))
    lines = [line.strip() for line in capsys.readouterr().err.splitlines()]
    assert lines[-3:] == ["because a needs b", "… 3 steps …", "because b is missing"]
