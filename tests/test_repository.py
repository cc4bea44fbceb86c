"""Tests the rules of the repository: linters, sizes, side effects of imports, and pages."""

from __future__ import annotations

import ast
import fnmatch
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support import needs
from tests.support.rows import each_row
from tests.support.source_code import ROOT, all_nodes, package_modules, parse_file, tracked_files

FILE_LINES = 600
FUNCTION_LINES = 60
# In pieces, since this file is searched too.
SNAPSHOT = "snapshot"  # Debian's snapshot archive is allowed in a matrix, as the last mirror
REGISTRIES = (
    *(f"{host}.org" for host in ("pypi", "pypi.python", "pythonhosted", "npmjs")),
    *(f"{host}.debian.org" for host in ("deb", "security", "ftp", SNAPSHOT, "httpredir")),
    "http.debian" + ".net",
    "npmjs" + ".com",
)


def _is_code(path: Path) -> bool:
    return path.suffix in ("", ".py")


def _is_program(path: Path) -> bool:
    text = path.read_text()
    return text.startswith("#!") or 'if __name__ == "__main__"' in text


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_strings_with_placeholders_have_prefix_f():
    # RUF027 does not check all strings of several parts. Only texts have spaces.
    placeholder = re.compile(r"(?<!\^)\{(\w+)[^{}]*\}")
    lines = []
    for name, tree in package_modules().items():
        used = {node.id for node in all_nodes(tree) if isinstance(node, ast.Name)}
        texts = {
            id(node): f"{name}:{node.lineno}: {node.value}"
            for node in all_nodes(tree)
            if isinstance(node, ast.Constant)
            if isinstance(node.value, str) and " " in node.value.strip()
            if not used.isdisjoint(placeholder.findall(node.value))
        }
        functions = [node for node in all_nodes(tree) if isinstance(node, ast.FunctionDef)]
        for function in functions if texts else ():
            inner = list(ast.walk(function))
            first = function.body[0]
            excluded = {id(first.value)} if isinstance(first, ast.Expr) else set()
            excluded |= {
                id(part)
                for node in inner
                if isinstance(node, ast.JoinedStr)
                for part in node.values
            }
            variables = {node.arg for node in inner if isinstance(node, ast.arg)} | {
                node.id for node in inner if isinstance(node, ast.Name)
            }
            lines += [
                texts[part]
                for part in texts.keys() & set(map(id, inner)) - excluded
                if not variables.isdisjoint(placeholder.findall(texts[part]))
            ]
    assert not lines


def test_ruff_reports_nothing():
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--output-format", "concise"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_hadolint_reports_nothing():
    # All Dockerfiles of images are made from one template.
    images = "images/*/Dockerfile" if needs.is_long_run() else "images/cu130-trl/Dockerfile"
    dockerfiles = [*tracked_files(images), *tracked_files("tests/data/render/Dockerfile*")]
    assert dockerfiles
    linter = Path(sys.executable).with_name("hadolint")
    command = [linter if linter.exists() else "hadolint", "--no-color", *dockerfiles]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "words", [("actionlint",), ("zizmor", "--offline", "--no-progress", "--quiet", ".github")]
)
def test_actionlint_and_zizmor_report_nothing(words):
    program = Path(sys.executable).with_name(words[0])
    command = [program if program.exists() else words[0], *words[1:]]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_workflows_pin_actions_by_commit_with_version():
    named = [
        line.strip()
        for path in tracked_files(".github")
        for line in path.read_text().splitlines()
        if "uses: " in line and "uses: $/" not in line and "uses: ./ " not in line
    ]
    assert named
    assert [line for line in named if not re.search(r"@[0-9a-f]{40} # v\d+\.\d+\.\d+$", line)] == []


def test_shellcheck_reports_nothing():
    # Three quarters of these scripts are the same lines.
    names = "*" if needs.is_long_run() else "[rsv]*"
    scripts = tracked_files(f"tests/data/slurm/{names}.sh")
    assert len(scripts) > 2
    linter = Path(sys.executable).with_name("shellcheck")  # its wheel is for x86_64 alone
    program = linter if linter.exists() else needs.require_tool("shellcheck")
    words = ("ci", "script", "cu124-vllm", "--all-published", "--registry", "registry.example/rl")
    for more in ((), ("--on", "slurm", "--sign-key", "it's a key", "--sbatch=--qos=high")):
        script = subprocess.run(
            [sys.executable, "-m", "imgbuild", *words, *more],
            cwd=ROOT, capture_output=True, text=True, check=True,
        )  # fmt: skip
        done = subprocess.run(
            [program, "--severity", "style", "-"],
            input=script.stdout, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
    command = [program, "--severity", "style", *scripts]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_mypy_reports_nothing():
    words: list[str] = []
    if needs.is_strict() and not needs.is_long_run():
        # Over half of the time is for tests and for a cache, which .ci/run omits.
        folders = tomllib.loads(_text("pyproject.toml"))["tool"]["mypy"]["files"]
        words = ["--cache-dir", os.devnull, *(each for each in folders if each != "tests")]
    command = [sys.executable, "-m", "mypy", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_mypy_is_strict():
    settings = (ROOT / "pyproject.toml").read_text()
    assert re.search(r"^strict = true$", settings, re.MULTILINE)


def test_files_are_within_size_limit():
    code = [
        *tracked_files("*.py"),
        *(path for path in tracked_files("lab", "tools", ".ci", "Makefile") if _is_code(path)),
    ]
    long = [f"{_name(path)}: {n}" for path in code if (n := _lines(path)) > FILE_LINES]
    assert not long, f"files with more than {FILE_LINES} lines: {long}"


def test_functions_are_within_size_limit():
    long = []
    for path in tracked_files("*.py"):
        for node in all_nodes(parse_file(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or 0) - node.lineno + 1 - _docstring_lines(node)
                if lines > FUNCTION_LINES:
                    long.append(f"{_name(path)}:{node.lineno} {node.name}: {lines}")
    assert not long, f"functions with more than {FUNCTION_LINES} lines: {long}"


def test_modules_have_docstrings():
    # An empty __init__ needs no docstring.
    mute = [
        name
        for name, tree in package_modules().items()
        if tree.body and ast.get_docstring(tree) is None
    ]
    assert not mute


def test_text_files_are_opened_with_an_encoding():
    wrong = [
        f"{name}:{node.lineno} {ast.unparse(node.func)}"
        for name, tree in package_modules().items()
        for node in all_nodes(tree)
        if isinstance(node, ast.Call)
        and re.search(r"\.(read_text|write_text)$|^tarfile\.open$", ast.unparse(node.func))
        and not any(keyword.arg == "encoding" for keyword in node.keywords)
    ]
    assert not wrong, "pass encoding='utf-8'"


def test_no_package_registry_is_named():
    pattern = re.compile("|".join(re.escape(host) for host in REGISTRIES))
    named: list[str] = []
    for path in tracked_files():
        if path.is_symlink():
            continue  # what it links to is tracked under its own name
        text = path.read_bytes().decode(errors="replace")
        hosts = {match.group() for match in pattern.finditer(text)}
        if _name(path) in ("matrix.yaml", "tool/matrix.yaml"):
            hosts = {host for host in hosts if not host.startswith(SNAPSHOT)}
        named.extend(f"{_name(path)}: {host}" for host in hosts)
    assert not named, "read the address from uv, pip or apt at run time"


def test_every_error_class_has_its_exit_code():
    from imgbuild.errors import ImgbuildError

    codes = [kind.exit_code for kind in ImgbuildError.__subclasses__()]
    assert len(set(codes)) == len(codes)
    assert all("exit_code" in vars(kind) for kind in ImgbuildError.__subclasses__())
    assert issubclass(ImgbuildError, Exception)


def test_exit_codes_are_documented():
    from imgbuild.errors import ImgbuildError

    text = (ROOT / "CONTRIBUTING.md").read_text()
    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)}
    assert documented == {0, *(kind.exit_code for kind in ImgbuildError.__subclasses__())}


@each_row(
    ("name", "words"),
    [
        ("LICENSE", "Apache License"),
        ("README.md", "## Quick start"),
        ("CONTRIBUTING.md", "## Rules"),
        ("CHANGELOG.md", "## Unreleased"),
        ("docs/reproducibility.md", "umask"),
        ("docs/benchmarks.md", "lab/benchmark.py"),
        ("builder/imgbuild/py.typed", ""),
    ],
)
def test_repository_documents_exist(name, words):
    assert words in (ROOT / name).read_text()


def test_links_in_documents_are_valid():
    broken = []
    for path in tracked_files("*.md"):
        for link in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
            target = link.partition("#")[0]
            if target and "://" not in target and not (path.parent / target).exists():
                broken.append(f"{_name(path)}: {link}")
    assert not broken


def test_every_public_file_of_cli_defines_a_verb():
    import typer

    from imgbuild.cli._app import app

    folder = ROOT / "builder/imgbuild/cli"
    files = {path.stem for path in folder.glob("*.py") if not path.stem.startswith("_")}
    verbs = getattr(typer.main.get_command(app), "commands", {})
    program_verbs = verbs.keys()
    assert program_verbs - files == set()
    # A file of a sub-verb is named VERB_SUBVERB.
    below = {
        f"{verb}_{name}" for verb in program_verbs for name in getattr(verbs[verb], "commands", {})
    }
    assert files - program_verbs - below == set()


def test_documents_name_existing_verbs():
    import typer

    from imgbuild.cli._app import app

    verbs = set(getattr(typer.main.get_command(app), "commands", {}))
    named = {
        (_name(path), verb)
        for path in [*tracked_files("*.md"), ROOT / "Makefile"]
        if path.name != "CHANGELOG.md"  # it lists removed verbs
        for verb in re.findall(r"(?:\$ |`|\(IMGBUILD\) )imgbuild ([a-z]+)", path.read_text())
    }
    assert named
    assert {place for place in named if place[1] not in verbs} == set()


def test_committed_json_schema_is_current(golden):
    from imgbuild.matrix.schema import matrix_schema_bytes

    golden(ROOT / "matrix.schema.json", matrix_schema_bytes().decode())


def test_pytest_collects_every_test_file(pytestconfig):
    """By default, pytest skips folders with names such as build and dist."""
    skipped = [
        f"{path}: pytest skips a folder named {folder}"
        for path in tracked_files("tests/**/test_*.py", "tests/test_*.py")
        for folder in _name(path).split("/")[:-1]
        if any(fnmatch.fnmatch(folder, pattern) for pattern in pytestconfig.getini("norecursedirs"))
    ]
    assert not skipped


def test_constraints_file_pins_every_package_of_the_environment():
    from importlib.metadata import distributions

    pins = dict(
        line.split(" ")[0].split("==") for line in _text("tools/constraints.txt").splitlines()
    )
    tools = {"imgbuild", "pip", "setuptools", "wheel"}
    names = {re.sub(r"[-_.]+", "-", d.metadata["Name"]).lower() for d in distributions()}
    assert names - tools <= pins.keys()


HELP = """
import contextlib, io, os, runpy, sys
for path in sys.argv[1:]:
    sys.argv, sys.path[0], text = [path, "--help"], os.path.dirname(path), io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
        runpy.run_path(path, run_name="__main__")
    print(len(text.getvalue()), path)
"""


def test_tools_have_a_help_text():
    programs = [path for path in tracked_files("lab", "tools") if _is_program(path)]
    in_python = [path for path in programs if path.suffix == ".py"]
    assert in_python
    done = subprocess.run(
        [sys.executable, "-c", HELP, *in_python], capture_output=True, text=True, check=True
    )
    lengths = {line.partition(" ")[2]: int(line.split(" ")[0]) for line in done.stdout.splitlines()}
    assert lengths.keys() == set(map(str, in_python))
    for path in set(programs) - set(in_python):
        shown = subprocess.run([path, "--help"], capture_output=True, text=True, check=True)
        lengths[str(path)] = len(shown.stdout)
    assert [path for path, length in lengths.items() if length <= 100] == []


def test_tools_can_be_run():
    silent = [
        p
        for p in tracked_files("lab", "tools")
        if p.read_bytes()[:2] == b"#!" and not os.access(p, os.X_OK)
    ]
    assert not silent


def test_makefile_has_a_help_text():
    command = ["make", "--silent", "--no-print-directory", "help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    phony = re.search(r"^\.PHONY: (.+)$", _text("Makefile"), re.MULTILINE)
    assert phony
    assert {line.partition(":")[0] for line in done.stdout.splitlines()} == set(phony[1].split())


def _docstring_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """A verb's docstring is the help text, whose length is not limited."""
    if ast.get_docstring(node) is None:
        return 0
    return (node.body[0].end_lineno or 0) - node.body[0].lineno + 1


def _lines(path: Path) -> int:
    return len(path.read_text().splitlines())


def _text(name: str) -> str:
    return (ROOT / name).read_text()
