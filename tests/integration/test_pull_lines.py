"""Tests that the workflow writes the commands that pull published images into README.md."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from imgbuild.publish import push
from tests.support import doc_blocks, registry_project
from tests.support.inprocess_project import TARGET
from tests.support.registry_project import BOTH, Place

ROOT = Path(__file__).parents[2]
PATH = os.environ["PATH"]  # without what the tests of registries hide
README = "# Mine\n\n<!-- pull -->\nolder\n<!-- /pull -->\n\nmore\n"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    yield from registry_project.place(tmp_path, monkeypatch)


@pytest.fixture
def fork(place: Place) -> Path:
    """A checkout of the project with the tool, an environment and a README."""
    folder = place.sample.folder
    (folder / "tools").mkdir()
    shutil.copy(ROOT / "tools/pull_lines.py", folder / "tools")
    (folder / ".venv").symlink_to(sys.prefix)
    (folder / "build").mkdir(exist_ok=True)
    (folder / "README.md").write_text(README)
    return folder


def step(folder: Path, place: str) -> subprocess.CompletedProcess[str]:
    """Run the script of the workflow step as GitHub does, for the repository `place`."""
    jobs = yaml.safe_load((ROOT / ".github/workflows/update.yml").read_text())["jobs"]
    [script] = [each["run"] for each in jobs["update"]["steps"] if "pull_lines" in str(each)]
    assert "${{" not in script
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
        cwd=folder, env={**os.environ, "PATH": PATH, "REGISTRY": place},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_workflow_writes_pull_commands_for_its_registry(place: Place, fork: Path) -> None:
    place.push()
    push.push_target(place.work(), place.both())
    done = step(fork, str(place.repository).upper())
    assert (done.returncode, done.stderr) == (0, "")
    text = (fork / "README.md").read_text()
    assert text.startswith("# Mine\n\n<!-- pull -->\n")
    assert text.endswith("\n<!-- /pull -->\n\nmore\n")
    assert "older" not in text
    for target in (TARGET, BOTH):
        image = f"{place.repository}:{target}"
        assert f"\n$ docker pull {image}\n" in text
        assert f"\n$ apptainer pull {target}.sif docker://{image}\n" in text
    assert "README.md: the commands that pull" in (fork / "build/update.md").read_text()
    # Again: nothing changes, and the text of the pull request does not mention it.
    (fork / "build/update.md").unlink()
    assert step(fork, str(place.repository)).returncode == 0
    assert (fork / "README.md").read_text() == text
    assert (fork / "build/update.md").read_text() == ""


def test_readme_is_unchanged_if_the_registry_is_empty(place: Place, fork: Path) -> None:
    done = step(fork, f"{place.registry.host}/me/absent")
    assert done.returncode == 0
    assert "::notice::" in done.stdout
    assert (fork / "README.md").read_text() == README


def test_readme_without_markers_for_pull_commands_is_unchanged(place: Place, fork: Path) -> None:
    place.push()
    (fork / "README.md").write_text("# Mine\n")
    assert step(fork, str(place.repository)).returncode == 0
    assert (fork / "README.md").read_text() == "# Mine\n"


def test_pull_commands_are_a_valid_code_block_of_the_docs(place: Place, fork: Path) -> None:
    """A fork whose README has these commands must pass the same tests."""
    place.push()
    step(fork, str(place.repository))
    [block] = re.findall(
        r"(<!-- not run: [^\n]+ -->)\n```console\n", (fork / "README.md").read_text()
    )
    mark = doc_blocks.MARK.fullmatch(block)
    assert mark is not None
    assert mark["said"] in doc_blocks.REASONS


def test_readme_of_this_repository_has_markers_for_pull_commands() -> None:
    text = (ROOT / "README.md").read_text()
    assert text.count("<!-- pull -->") == text.count("<!-- /pull -->") == 1
