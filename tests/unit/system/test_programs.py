"""Tests how the executable and the environment of a command are found."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from imgbuild.errors import ToolMissing
from imgbuild.system import process, programs
from tests.support.rows import each_row


@pytest.fixture(name="here")
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with the programs `tool` and, below `bin`, `other`."""
    for name in ("tool", "bin/other"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "path", ["", ":", ".", "::/usr/bin", "./:/usr/bin", "bin:/usr/bin", "../."]
)
def test_relative_entries_of_the_path_variable_are_not_searched(
    here: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setenv("PATH", path)
    assert programs.find_on_path("tool") is programs.find_on_path("other") is None
    assert programs.find_on_path("tool", path=path) is None
    with pytest.raises(ToolMissing, match="tool is not installed"):
        process.find_program("tool", remedy="")
    with pytest.raises(ToolMissing, match="tool is not installed"):
        process.run_command(["tool"])


def test_absolute_entries_of_the_path_variable_are_searched(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f":{here}/bin")
    assert programs.find_on_path("other") == f"{here}/bin/other"
    assert programs.find_on_path("bin/other") == "bin/other"
    assert programs.find_on_path("tool", path=str(here)) == f"{here}/tool"


@each_row(("name", "given", "left"), [
    ("PATH", ":/usr/bin:.:x/y:/bin:", "/usr/bin:/bin"),
    ("PATH", ".", os.defpath),
    ("PATH", "", os.defpath),
    ("PYTHONPATH", "/opt/a::lib", "/opt/a"),
    ("PYTHONPATH", ":", ""),
    ("LD_LIBRARY_PATH", "/opt/lib;;.:/opt/lib64", "/opt/lib:/opt/lib64"),
    ("OTHER_PATH", "::", "::"),
])  # fmt: skip
def test_folder_list_variables_exclude_the_current_folder(
    monkeypatch: pytest.MonkeyPatch, name: str, given: str, left: str
) -> None:
    monkeypatch.setenv(name, given)
    assert programs.program_environment("uv")[name] == left
    monkeypatch.delenv(name)
    assert programs.program_environment("uv", {name: given})[name] == left


def test_git_settings_follow_user_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "safe.directory")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "*")
    for program in ("git", "/usr/bin/git", "docker"):
        env = programs.program_environment(program)
        count = int(env["GIT_CONFIG_COUNT"])
        settings = {env[f"GIT_CONFIG_KEY_{n}"]: env[f"GIT_CONFIG_VALUE_{n}"] for n in range(count)}
        assert settings == {"safe.directory": "*", **programs.GIT_SETTINGS}
    assert (
        programs.program_environment("sbatch")["GIT_CONFIG_COUNT"] == "1"
    )  # for the jobs of the user
