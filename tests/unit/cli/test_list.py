"""Tests `imgbuild list`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from imgbuild.cli import list as listing
from imgbuild.errors import InputError, NothingSelected
from tests.support.matrix_text import VALID_MATRIX

ROOT = Path(__file__).parents[3]
app = typer.Typer()


@app.callback()
def program() -> None:
    """An environment with a program named `list`."""


app.command("list")(listing.list_targets)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "matrix.yaml").write_text(VALID_MATRIX, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("project")
def test_matrix_is_listed_as_text() -> None:
    done = CliRunner().invoke(app, ["list"])
    assert done.exit_code == 0, done.output
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["name", "cu124-vllm"]


@pytest.mark.usefixtures("project")
def test_matrix_is_listed_as_json() -> None:
    (row,) = json.loads(CliRunner().invoke(app, ["list", "--json", "--target", "cu*"]).stdout)
    assert row["pins"]["vllm"] == "0.8.5.post1"
    assert row["exclude"] == {"arm64": "no wheel for aarch64"}


@pytest.mark.usefixtures("project")
def test_matrix_is_listed_as_markdown() -> None:
    done = CliRunner().invoke(app, ["list", "--format", "markdown", "cu124-vllm"])
    assert done.stdout.startswith("| target | CUDA |")


def test_list_ordered_by_size_begins_with_the_smallest_image() -> None:
    matrix = ("--matrix", str(ROOT / "matrix.yaml"))
    done = CliRunner().invoke(app, ["list", "--with", "ray", "--order", "size", *matrix])
    head, *rows = done.stdout.splitlines()
    place = head.index("pull")
    sizes = [row[place:].split()[0] for row in rows]
    assert sizes == [*sorted(size for size in sizes if size != "-"), *["-"] * sizes.count("-")]
    assert head.split()[-2:] == ["pull", "tested"]
    done = CliRunner().invoke(app, ["list", "--wide", "--with", "ray", *matrix])
    assert re.search(r"  [3-6]\.\d GB  locked  ", done.stdout)


def test_image_that_lacks_requirements_of_an_extra_is_not_listed() -> None:
    """Both images have Ray, but only the first has the requirements of ray[default]."""
    names = ("cu124-vllm0.8.5", "cu124-vllm", "--json", "--matrix", str(ROOT / "matrix.yaml"))
    for package, expected in (
        ("ray", {"cu124-vllm0.8.5", "cu124-vllm"}),
        ("ray[default]", {"cu124-vllm0.8.5"}),
    ):
        done = CliRunner().invoke(app, ["list", "--with", package, *names])
        assert {row["target"] for row in json.loads(done.stdout)} == expected
    done = CliRunner().invoke(app, ["list", "--with", "ray[absent]", *names])
    assert isinstance(done.exception, NothingSelected)


@pytest.mark.usefixtures("project")
def test_targets_are_filtered_by_the_date_of_their_packages() -> None:
    assert CliRunner().invoke(app, ["list", "--as-of", "2025-06-20"]).exit_code == 0
    with pytest.raises(NothingSelected, match="--as-of 2025-06-19"):
        CliRunner().invoke(app, ["list", "--as-of", "2025-06-19"], catch_exceptions=False)
    with pytest.raises(InputError, match="invalid date for --as-of: 20"):
        CliRunner().invoke(app, ["list", "--as-of", "20"], catch_exceptions=False)


@pytest.mark.parametrize(
    "filter_words", [("--tested", ""), ("--cuda", " "), ("--python", ""), ("--fetch",)]
)
def test_empty_or_useless_filter_is_refused(filter_words: tuple[str, ...]) -> None:
    with pytest.raises(InputError, match=f"^{filter_words[0]}"):
        CliRunner().invoke(app, ["list", *filter_words], catch_exceptions=False)


def test_gpus_of_tests_are_named_if_no_target_was_tested_on_a_gpu() -> None:
    words = ["list", "--tested", "A100", "--matrix", str(ROOT / "matrix.yaml")]
    with pytest.raises(NothingSelected, match=r"--tested A100: tests passed only on .*, H200"):
        CliRunner().invoke(app, words, catch_exceptions=False)


@pytest.mark.usefixtures("project")
def test_unknown_target_is_refused() -> None:
    assert isinstance(CliRunner().invoke(app, ["list", "cu124"]).exception, NothingSelected)


def test_invalid_matrix_is_refused(project: Path) -> None:
    path = project / "matrix.yaml"
    path.write_text(VALID_MATRIX.replace("groups: 4", "groups: four"), encoding="utf-8")
    done = CliRunner().invoke(app, ["list"])
    assert isinstance(done.exception, InputError)
    (problem,) = done.exception.problems
    assert (problem.file, problem.path, problem.value) == (str(path), "layers.groups", "four")


@pytest.fixture
def retired(project: Path) -> Path:
    """The project with a second target, the retired `cu124-old`."""
    head, row = VALID_MATRIX.split("targets:\n")
    old = row.replace("  cu124-vllm:\n", "  cu124-old:\n    retired: cu124-vllm takes its place\n")
    (project / "matrix.yaml").write_text(f"{head}targets:\n{old}{row}", encoding="utf-8")
    return project


def _names(*words: str) -> list[str]:
    return [row["target"] for row in json.loads(CliRunner().invoke(app, ["list", *words]).stdout)]


@pytest.mark.usefixtures("retired")
def test_retired_target_is_listed_only_on_request_and_at_the_end() -> None:
    assert _names("--json") == ["cu124-vllm"]
    assert _names("--json", "--all") == ["cu124-vllm", "cu124-old"]
    assert _names("--json", "cu124-old") == ["cu124-old"]
    assert _names("--json", "cu124-*") == ["cu124-vllm", "cu124-old"]
    shown = CliRunner().invoke(app, ["list", "--all"]).stdout.splitlines()
    assert [line.split()[0] for line in shown] == ["name", "cu124-vllm", "cu124-old"]
    assert "(retired)" in shown[-1]


@pytest.mark.usefixtures("retired")
def test_filter_excludes_and_counts_retired_targets() -> None:
    assert _names("--json", "--with", "vllm") == ["cu124-vllm"]
    assert "retired: 1; to list them, add --all" in CliRunner().invoke(app, ["list"]).stderr


def test_only_retired_targets_that_match_the_filters_are_counted(retired: Path) -> None:
    matrix = retired / "matrix.yaml"
    old, line, current = matrix.read_text(encoding="utf-8").partition("  cu124-vllm:\n")
    older = old.replace('vllm: "0.8.5.post1"', 'vllm: "0.8.4"')
    assert older != old
    matrix.write_text(older + line + current, encoding="utf-8")
    shown = CliRunner().invoke(app, ["list", "--with", "vllm>=0.8.5"])
    assert "cu124-vllm" in shown.stdout
    assert "retired" not in shown.stderr


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ray @ https://example.org/ray.whl", "markers and URLs are not supported"),
        ("ray; sys_platform == 'linux'", "markers and URLs are not supported"),
    ],
)
def test_list_filter_refuses_urls_and_markers(project: Path, text: str, words: str) -> None:
    done = CliRunner().invoke(app, ["list", "--with", text])
    assert isinstance(done.exception, InputError)
    assert words in done.exception.message


def test_only_locked_targets_have_restrictions_on_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    words = ["list", "--driver", "550", "--cuda", "12"]
    notes = CliRunner().invoke(app, words).stderr
    restricted = re.findall(r"cu12[\w.-]+", notes.partition("run with restrictions")[2])
    rows = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    planned = {row["target"] for row in rows if not row["images"]}
    assert restricted
    assert planned
    assert planned.isdisjoint(restricted)
