"""Tests the command line without a home folder, with other encodings and invalid settings."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.support.inprocess_project import Command
from tests.support.source_code import ROOT

NOBODY = 54321  # a user id without an entry in /etc/passwd


def imgbuild(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "builder"), **env}
    return subprocess.run(
        [sys.executable, "-m", "imgbuild", *arguments],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("verb", [("cache", "info"), ("build", "cu124-vllm")])
def test_error_for_a_user_without_a_home_folder_names_the_variable(verb, monkeypatch, capsys):
    for name in ("HOME", "IMGBUILD_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: NOBODY)
    monkeypatch.chdir(ROOT)
    done = Command(monkeypatch, capsys)(*verb, status=2)
    assert f"user ID {NOBODY} has no passwd entry" in done.stderr
    assert "hint: set HOME, or IMGBUILD_CACHE" in done.stderr
    monkeypatch.setenv("IMGBUILD_CACHE", "/tmp/elsewhere")
    assert Command(monkeypatch, capsys)("cache", "info").stdout.startswith("/tmp/elsewhere\n")


def test_characters_that_the_terminal_cannot_encode_are_escaped(tmp_path):
    env = {"HOME": str(tmp_path), "PYTHONIOENCODING": "latin-1"}
    done = imgbuild("ci", "jobs", "--all", **env)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False)
    assert "gate -> pull -> smoke" in done.stdout
    result = imgbuild("ci", "jobs", "--all", "--json", **env)
    assert json.loads(result.stdout) == json.loads(
        imgbuild("ci", "jobs", "--all", "--json", HOME=str(tmp_path)).stdout
    )


def test_invalid_cache_size_is_refused_early(tmp_path):
    done = imgbuild("build", "cu124-vllm", HOME=str(tmp_path), IMGBUILD_CACHE_SIZE="lots")
    assert done.returncode == 2
    assert "IMGBUILD_CACHE_SIZE: invalid size 'lots'" in done.stderr
    assert not (tmp_path / ".cache").exists()
