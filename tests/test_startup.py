"""Tests that a command imports only necessary modules, because each import delays the start."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests import layers
from tests.support.inprocess_project import TARGET, SampleProject, write_project

ROOT = Path(__file__).parents[1]
LIBRARIES = ("cryptography", "docker", "elftools", "jinja2", "nacl", "requests", "rich", "urllib3")
SHOW = (
    "import sys; from imgbuild.cli import main\n"
    "try: main()\n"
    "finally: print(*sys.modules, file=sys.stderr)"
)


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> SampleProject:
    return write_project(tmp_path_factory.mktemp("startup"))


def _imported(sample: SampleProject, *words: str) -> set[str]:
    """The modules that are imported when a command ends."""
    done = subprocess.run(
        [sys.executable, "-c", SHOW, *words],
        cwd=sample.folder, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return set(done.stderr.splitlines()[-1].split())


def test_version_option_imports_no_command_line_modules(sample: SampleProject) -> None:
    modules = _imported(sample, "--version")
    assert {name for name in modules if name.startswith("imgbuild")} == {"imgbuild", "imgbuild.cli"}
    assert modules.isdisjoint({*LIBRARIES, "typer", "msgspec", "yaml", "packaging"})


@pytest.mark.parametrize(
    ("words", "libraries"),
    [
        (("digest", TARGET), (*LIBRARIES, *layers.HEAVY)),
        (("list",), LIBRARIES),
        (("show", TARGET), LIBRARIES),
        (("--help",), (*LIBRARIES, *layers.HEAVY)),
        (("build", "--help"), ("elftools", "http.server", *LIBRARIES)),
        (("lock", "--help"), ("elftools", "http.server")),
    ],
    ids=" ".join,
)
def test_verb_imports_only_the_libraries_that_it_uses(
    sample: SampleProject, words: tuple[str, ...], libraries: tuple[str, ...]
) -> None:
    assert _imported(sample, *words) & {*libraries} == set()


def test_main_help_imports_no_verb(sample: SampleProject) -> None:
    modules = {name for name in _imported(sample, "--help") if name.startswith("imgbuild.cli.")}
    assert {name for name in modules if not name.startswith("imgbuild.cli._")} == set()


def test_verb_imports_no_other_verb(sample: SampleProject) -> None:
    modules = {name for name in _imported(sample, "digest", TARGET) if "imgbuild.cli." in name}
    assert {name for name in modules if not name.startswith("imgbuild.cli._")} == {
        "imgbuild.cli.digest"
    }


def test_run_of_existing_image_imports_no_build_modules(sample: SampleProject) -> None:
    modules = _imported(sample, "run", TARGET, "--dry-run", "--", "true")
    for part in ("assemble", "solve", "audit", "render.contexts", "sif", "project.read"):
        assert {name for name in modules if name.startswith(f"imgbuild.{part}")} == set()


@pytest.mark.parametrize(
    ("words", "redirected"),
    [
        *((words, ">/dev/full") for words in ("--version", "list", "list --json")),
        ("list", ">&-"),
        ("--version", ">&- 2>&-"),
        ("list --nosuch --json", ">&-"),
    ],
)
def test_full_or_closed_stdout_is_an_error(
    sample: SampleProject, words: str, redirected: str
) -> None:
    program = f"{sys.executable} -c 'from imgbuild.cli import main; main()' {words} {redirected}"
    done = subprocess.run(
        ["sh", "-c", program], cwd=sample.folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == (2 if "--nosuch" in words else 1)
    assert "Traceback" not in done.stderr
    if "2>" not in redirected and "--nosuch" not in words:
        assert "error: the result cannot be written to stdout: " in done.stderr


def test_only_listed_imports_are_inside_functions() -> None:
    """Verbs are imported lazily in one place, and rare modes may import in functions."""
    places = {
        f"{path.parent.name}.{path.stem}.{function.name}"
        for path in [*(ROOT / "builder/imgbuild/cli").glob("*.py")]
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    assert places == {
        "cli.__init__.main",
        "cli._cause.report_cause",
        "cli._main.main",
        "cli._selection._refuse_selection",
    }
