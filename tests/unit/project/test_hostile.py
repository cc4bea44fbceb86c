"""Tests that invalid and hostile files are reported with file and place, without a traceback."""

from __future__ import annotations

import contextlib
import json
import os
import random
import tempfile
from pathlib import Path

import pytest

from imgbuild.errors import InputError
from imgbuild.project.project_files import LIMIT
from imgbuild.project.read import read_declared
from tests.support.rows import each_row
from tests.support.user_projects import (
    read_declarations,
    reported_problems,
    requirement_texts,
    unread_reasons,
    write_project,
)
from tests.unit.project.test_kinds import PROJECTS

LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)

HEAD_OF_SETUP = "from setuptools import setup\nsetup(name='lib', version='1')\n"

BROKEN: dict[str, tuple[dict[str, str | bytes], str, int | None, str]] = {
    "toml": ({"pyproject.toml": "[project\n"}, "pyproject.toml", 1, "not valid TOML"),
    "toml-deep": ({"pyproject.toml": f"x = {'[' * 9000}{']' * 9000}\n"}, "pyproject.toml", None,
                  "nested too deeply"),
    "json": ({"train.ipynb": '{"cells": [}'}, "train.ipynb", 1, "not valid JSON"),
    "json-deep": ({"train.ipynb": "[" * 100_000}, "train.ipynb", None, "nested too deeply"),
    "notebook": ({"train.ipynb": "[]"}, "train.ipynb", None, "no list of cells"),
    "yaml": ({"environment.yml": "dependencies: [a\n"}, "environment.yml", 2, "not valid YAML"),
    "yaml-laughs": ({"environment.yml": LAUGHS}, "environment.yml", None, "aliases"),
    "yaml-deep": ({"environment.yml": "[" * 400}, "environment.yml", None, ""),
    "yaml-cycle": ({"environment.yml": "a: &a [*a]\n"}, "environment.yml", 1, "alias"),
    "yaml-text": ({"environment.yml": "text\n"}, "environment.yml", None, "conda environment"),
    "utf8": ({"requirements.txt": b"torch\n\xff\xfe\xfa\n"}, "requirements.txt", 2, "UTF-8"),
    "control": ({"requirements.txt": "torch\nnum\x1b[2Jpy\n"}, "requirements.txt", 2, "control"),
    "setup": ({"setup.py": "def (:\n"}, "setup.py", 1, "not Python"),
    "setup-deep": ({"setup.py": "x = " + "(" * 5000 + ")" * 5000}, "setup.py", None, ""),
    "cfg": ({"setup.cfg": "no section\n"}, "setup.cfg", None, "not valid"),
    "docker": ({"Dockerfile": "RUN pip install torch\n"}, "Dockerfile", None, "no FROM"),
    "groups": ({"pyproject.toml": '[dependency-groups]\na = [{include-group = "b"}]\n'
                'b = [{include-group = "a"}]\n[tool.uv]\ndefault-groups = ["a"]\n'},
               "pyproject.toml", 2, "form a cycle"),
    "group-missing": ({"pyproject.toml": '[dependency-groups]\na = [{include-group = "c"}]\n'
                       '[tool.uv]\ndefault-groups = ["a"]\n'}, "pyproject.toml", 2,
                      "does not exist"),
    "list": ({"pyproject.toml": '[project]\nname = "a"\ndependencies = "torch"\n'},
             "pyproject.toml", 3, "not a list"),
    "python": ({"pyproject.toml": '[project]\nname = "a"\nrequires-python = "three"\n'},
               "pyproject.toml", 3, "specifier"),
    "poetry": ({"pyproject.toml": '[tool.poetry]\nname = "a"\n[tool.poetry.dependencies]\n'
                'torch = "^^2"\n'}, "pyproject.toml", 4, "Poetry"),
    "index": ({"pyproject.toml": '[project]\nname = "a"\ndependencies = ["torch"]\n'
               '[tool.uv.sources]\ntorch = {index = "none"}\n'}, "pyproject.toml", 5, "index"),
    "escape": ({"pyproject.toml": '[project]\nname = "a\\u001b[2J"\n'}, "pyproject.toml", None,
               "control character"),
    "pylock": ({"pylock.toml": 'lock-version = "1.0"\n'}, "pylock.toml", None, "PEP 751"),
    "marker": ({"pyproject.toml": '[tool.poetry]\nname = "a"\n[tool.poetry.dependencies]\n'
                'peft = "*"\n', "poetry.lock": '[[package]]\nname = "peft"\nversion = "1"\n'
                'markers = "os ~"\nfiles = []\n[metadata]\nlock-version = "2.1"\n'},
               "poetry.lock", 2, "marker"),
    "path-marker": ({"requirements.txt": "./lib ; os ~\n", "lib/setup.py": HEAD_OF_SETUP},
                    "requirements.txt", 1, "marker"),
}  # fmt: skip


@each_row("name", BROKEN)
def test_broken_project_file_is_reported_with_its_line(tmp_path, name):
    files, file, line, text = BROKEN[name]
    result = reported_problems(tmp_path, files)
    assert result[0].file == file
    assert result[0].line == line or line is None
    assert text in result[0].message


def test_problems_of_all_files_are_reported_together(tmp_path):
    files = {
        "pyproject.toml": '[project]\nname = "a"\ndependencies = ["torch=2", "numpy>>1"]\n',
        "requirements.txt": "-r nowhere.txt\n",
        "environment.yml": "[",
    }
    assert [each.file for each in reported_problems(tmp_path, files)] == [
        "pyproject.toml",
        "pyproject.toml",
        "requirements.txt",
        "environment.yml",
    ]


def test_link_to_a_file_outside_the_project_is_refused(tmp_path):
    secret = tmp_path / "secret.txt"
    secret.write_text("torch\n")
    folder = write_project(tmp_path / "p", {"readme.md": ""})
    (folder / "requirements.txt").symlink_to(secret)
    with pytest.raises(InputError) as error:
        read_declared(folder)
    (problem,) = error.value.problems
    assert "outside the project" in problem.message
    assert problem.value == str(secret)


def test_a_link_within_the_project_is_followed(tmp_path):
    folder = write_project(tmp_path, {"deps/all.txt": "torch\n"})
    (folder / "requirements.txt").symlink_to("deps/all.txt")
    assert requirement_texts(read_declared(folder)) == ["torch"]


def test_folder_linked_from_outside_the_project_is_not_read(tmp_path):
    outside = write_project(tmp_path / "o", {"pyproject.toml": '[project]\nname = "o"\n'})
    folder = write_project(tmp_path / "p", {"requirements.txt": "-e ./o\n"})
    (folder / "o").symlink_to(outside)
    assert "outside the project" in unread_reasons(read_declared(folder))["./o"]


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "is not a regular file"), ("-r pipe\n", "refers to a file that is not a regular file")],
)
def test_pipe_in_place_of_a_project_file_is_refused_without_blocking(tmp_path, text, message):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "requirements.txt").write_text(text)
    with pytest.raises(InputError) as error:
        read_declared(tmp_path, ["requirements.txt" if text else "pipe"])
    assert [each.message for each in error.value.problems] == [message]


def test_project_file_above_the_size_limit_is_refused(tmp_path):
    path = tmp_path / "requirements.txt"
    with path.open("wb") as file:
        file.truncate(LIMIT + 1)
    with pytest.raises(InputError) as error:
        read_declared(tmp_path)
    (problem,) = error.value.problems
    assert problem.message == "is too large"


def test_named_files_outside_project_or_of_unknown_kind_are_refused(tmp_path):
    files = {"model.bin": "x", "requirements.txt": "torch\n"}
    result = reported_problems(
        tmp_path, files, "../etc/passwd", "/etc/passwd", "model.bin", "gone.txt"
    )
    assert [each.message for each in result] == [
        "is outside the project",
        "is outside the project",
        "this kind of file is not supported",
        "does not exist",
    ]


def test_missing_extras_and_groups_are_refused_with_the_nearest_name(tmp_path):
    files = {
        "pyproject.toml": '[project]\nname = "a"\n[project.optional-dependencies]\nvllm = []\n'
    }
    with pytest.raises(InputError) as error:
        read_declarations(tmp_path, files, extras=["vlm"], groups=["x"])
    assert [(each.message, each.expected) for each in error.value.problems] == [
        ("has no extra vlm", "vllm?"),
        ("has no group x", "an existing group; there is none"),
    ]


def test_conflicting_extras_are_refused(tmp_path):
    files = {
        "pyproject.toml": '[project]\nname = "a"\n[project.optional-dependencies]\nx = []\ny = []\n'
        '[tool.uv]\nconflicts = [[{extra = "x"}, {extra = "y"}]]\n'
    }
    with pytest.raises(InputError) as error:
        read_declarations(tmp_path, files, extras=["x", "y"])
    (problem,) = error.value.problems
    assert problem.value == "extra:x and extra:y"


def test_valid_cells_of_a_malformed_notebook_are_read(tmp_path):
    cells = [None, 1, {"cell_type": "code"}, {"cell_type": "code", "source": [1, "!pip install a"]}]
    assert requirement_texts(
        read_declarations(tmp_path, {"n.ipynb": json.dumps({"cells": cells})})
    ) == ["a"]


JUNK = [
    *"{}[]$#=:*`%!",
    "5",
    "true",
    "[1]",
    '""',
    "{a=1}",
    "- x",
    '"',
    "\\",
    "\n",
    "@ ",
    "file:///",
]
JUNK += ["../", "-r ", "-e ", "&&", "||", "<<EOF", "${A:-b}", "\x00", "\\u0000", "x" * 300]


def _damaged(text: str, source: random.Random) -> str:
    """The text with some of its parts removed, replaced, or given another type."""
    for _ in range(source.randint(1, 4)):
        start = source.randrange(len(text) + 1)
        end = min(len(text), start + source.choice((0, 1, 10, 25)))
        values = [at + 1 for at, letter in enumerate(text) if letter in "=:"]
        if values and source.random() < 0.4:
            start = source.choice(values)
            end = text.find("\n", start) if "\n" in text[start:] else len(text)
        text = text[:start] + source.choice(("", *JUNK)) + text[end:]
    return text


@each_row("name", PROJECTS)
def test_damaged_project_file_is_read_or_refused(name):
    source = random.Random(name)
    files, extras, groups = PROJECTS[name]
    for _ in range(25):
        victim = source.choice(sorted(files))
        damaged = {**files, victim: _damaged(files[victim], source)}
        with tempfile.TemporaryDirectory() as folder, contextlib.suppress(InputError):
            read_declarations(Path(folder), damaged, extras=extras, groups=groups)
