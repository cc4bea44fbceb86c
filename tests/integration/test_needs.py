"""A missing thing skips a test with a remedy, or fails it where skipping is not allowed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sourcecode import ROOT

CASES = """
import pytest
from tests import needs

def test_tool():
    needs.tool("no-such-tool", "its-package")

@pytest.mark.disk(1e9)
def test_disk():
    pass

def test_plain():
    pytest.skip("some reason")

@pytest.mark.long
def test_long():
    raise AssertionError

@pytest.mark.skipif(True, reason="another reason")
def test_marked():
    pass
"""


@pytest.fixture
def outcome(tmp_path):
    """The text and the status of a pytest that runs CASES under this project's settings."""

    def run(
        strict: str, small: str = "", folder: Path = tmp_path, long: str = "", more: str = ""
    ) -> tuple[str, int]:
        (tmp_path / "test_cases.py").write_text(CASES + more)
        command = [sys.executable, "-m", "pytest", "-c", "pyproject.toml", "-rA"]
        done = subprocess.run(
            [*command, "-p", "tests.conftest", "-p", "no:cacheprovider", str(tmp_path)],
            cwd=ROOT,
            env={
                **os.environ,
                "IMGBUILD_NO_SKIP": strict,
                "IMGBUILD_SMALL_DISK": small,
                "IMGBUILD_LONG": long,
                "TMPDIR": str(folder),
                "COLUMNS": "200",
            },
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout, done.returncode

    return run


def test_what_is_missing_is_said_with_its_remedy(outcome):
    text, status = outcome("")
    assert status == 0
    assert "4 skipped" in text
    assert "no-such-tool is not installed; apt-get install its-package" in text
    assert "GB needed; make room" in text
    assert "1 deselected" in text


def test_every_skip_is_a_failure_where_none_is_allowed(outcome):
    text, status = outcome("1")
    assert status == 1
    assert "2 failed, 1 deselected, 2 errors" in text
    assert "skipping is not allowed here: no-such-tool is not installed" in text


def test_a_disk_that_is_known_to_be_small_skips_what_it_cannot_hold_and_nothing_else(outcome):
    text, status = outcome("1", "1")
    assert status == 1
    assert "2 failed, 1 skipped, 1 deselected, 1 error" in text
    assert "GB needed; make room" in text
    assert "1 test found no room and did not run" in text


def test_the_name_of_a_folder_says_nothing_of_its_room(outcome, tmp_path):
    folder = tmp_path / "somebody's"
    folder.mkdir()
    assert "2 failed, 1 skipped, 1 deselected, 1 error" in outcome("1", "1", folder)[0]


def test_room_is_counted_in_whole_gigabytes_that_are_there(tmp_path):
    """By the lines of .ci/run: what is not there in full is not there."""
    lines = (ROOT / ".ci/run").read_text().splitlines()
    [line] = [line for line in lines if line.startswith("free=")]
    df = tmp_path / "df"
    df.write_text("#!/bin/sh\necho Avail\necho 29999999999\n")
    df.chmod(0o755)
    done = subprocess.run(
        ["bash", "-euc", f"{line}\necho $free"],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "29\n"


def test_a_failure_is_told_when_it_happens(outcome):
    """What a run that is killed halfway has said: its summary never comes."""
    text, status = outcome("1", more="def test_zz():\n    import os\n    os._exit(9)\n")
    assert status == 9
    assert "test_cases.py::test_tool failed (call)" in text
    assert "skipping is not allowed here: no-such-tool is not installed" in text


def test_long_tests_run_where_they_are_asked_for(outcome):
    text, status = outcome("", long="1")
    assert status == 1
    assert "test_cases.py::test_long failed (call)" in text
    assert "deselected" not in text
    assert "IMGBUILD_LONG=1 runs them" in outcome("")[0]
