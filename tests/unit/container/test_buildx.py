"""Tests the buildx command, and the class and remedy of its errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from imgbuild.container import buildx
from imgbuild.errors import ImgbuildError, InputError, ToolMissing, WorkFailed
from imgbuild.system import process
from imgbuild.system.process import ProcessResult


@pytest.fixture
def output(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The output lines of a failing buildx 0.29.1, to which tests add lines."""
    lines: list[str] = []
    answer = ProcessResult(0, "github.com/docker/buildx v0.29.1 abc", "")

    def _follow(_: object, line, **__: object) -> int:
        for text in lines:
            line(text)
        return 1

    monkeypatch.setattr(
        "imgbuild.container.buildx.programs.find_on_path", lambda name: f"/usr/bin/{name}"
    )
    monkeypatch.setattr(process, "run_command", lambda *_, **__: answer)
    monkeypatch.setattr(process, "follow_output", _follow)
    return lines


@pytest.mark.parametrize(
    ("line", "kind", "hint"),
    [
        ("ERROR: Cannot connect to the Docker daemon at x", ToolMissing, "DOCKER_HOST"),
        ('ERROR: no builder "farm" found', InputError, "docker buildx ls"),
        ("ERROR: OCI exporter is not supported for the docker driver", ToolMissing, "containerd"),
        ("ERROR: write /x: no space left on device", WorkFailed, "prune"),
        ("ERROR: something new", WorkFailed, "to repeat the build, run: docker buildx bake"),
    ],
)
def test_buildx_failures_have_error_class_and_remedy(output, line, kind, hint):
    output += ["#1 a step", line]
    with pytest.raises(ImgbuildError) as caught:
        buildx.bake_target(Path("/"), "bake.json", "small", {})
    assert type(caught.value) is kind
    assert line in caught.value.message
    assert hint in str(caught.value.hint)


def test_error_of_docker_buildx_includes_the_end_of_its_output(output):
    output += [f"line {number}" for number in range(50)]
    with pytest.raises(WorkFailed) as caught:
        buildx.bake_target(Path("/"), "bake.json", "small", {})
    first, *lines = caught.value.message.splitlines()
    assert first == "docker buildx bake small failed:"
    assert lines == [f"line {number}" for number in range(10, 50)]


def test_old_docker_buildx_is_refused(output, monkeypatch):
    monkeypatch.setattr(
        process, "run_command", lambda *_, **__: ProcessResult(0, "buildx v0.9.1 abc", "")
    )
    text = r"buildx v0\.9\.1 is too old; 0\.12 or newer is required"
    with pytest.raises(ToolMissing, match=text):
        buildx.find_buildx()


def test_error_for_missing_docker_buildx_names_the_package(monkeypatch):
    monkeypatch.setattr("imgbuild.container.buildx.programs.find_on_path", lambda _: None)
    with pytest.raises(ToolMissing) as caught:
        buildx.find_buildx()
    assert "docker-buildx" in str(caught.value.hint)
