"""Tests `imgbuild diagnose` on real output, and `doctor --collect` on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import prepared_program

CRASH = "import ctypes, faulthandler; faulthandler.enable(); ctypes.string_at(0)"


def codes(folder: Path, *command: str) -> list[str]:
    """The codes of the causes found in stdout and stderr of a command."""
    text = subprocess.run(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    ).stdout.decode()
    words = ("diagnose", "--json")
    done = prepared_program.run_prepared(words, cwd=folder, env=os.environ, stdin=text)
    assert done.returncode == 0, done.stderr
    return [finding["code"] for finding in json.loads(done.stdout)["findings"]]


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ((sys.executable, "-c", "import flash_attn"), "IMG723"),
        ((sys.executable, "-c", "import ctypes; ctypes.CDLL('libcudart.so.11.0')"), "IMG770"),
        (("bash", "-c", "sh -c 'kill -9 $$'; echo after"), "IMG535"),
        ((sys.executable, "-c", CRASH), "IMG569"),
    ],
    ids=["missing-module", "missing-library", "killed", "crashed"],
)
def test_cause_is_found_in_the_real_output_of_a_failed_command(
    command: tuple[str, ...], code: str, tmp_path: Path
) -> None:
    assert codes(tmp_path, *command)[0] == code


def test_successful_pytest_and_git_output_has_no_failure(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text("def test_error_is_fatal():\n    assert True\n")
    assert codes(tmp_path, sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider") == []
    assert codes(tmp_path, "git", "--help", "--all") == []


def test_collected_data_describes_machine_without_secrets(tmp_path: Path) -> None:
    environment = os.environ | {"HF_TOKEN": "hf_secret", "NCCL_DEBUG": "INFO"}
    done = prepared_program.run_prepared(
        ("doctor", "--collect", "--json"), cwd=tmp_path, env=environment
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["host"]["kernel"]
    assert report["variables"]["NCCL_DEBUG"] == "INFO"
    assert report["variables"]["HF_TOKEN"] == "set"
    assert "hf_secret" not in done.stdout
