"""Tests that Docker builds an extension with the same files as imgbuild."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import dockerfile_project, needs
from tests.support.sample_project import TARGET, Project

pytestmark = [pytest.mark.long, pytest.mark.engine, pytest.mark.network]
OWN = "ours"


@pytest.fixture
def ours(tmp_path: Path) -> Iterator[Project]:
    """A locked extension of a small target with a package, a system package, a file and a link.

    The published target has a package that was built from its sdist.
    """
    with dockerfile_project.locked_project(tmp_path / "published", sdist=True) as published:
        folder = tmp_path / OWN
        folder.mkdir()
        (folder / "train.sh").write_text("#!/bin/sh\njq --version\n")
        (folder / "train.sh").chmod(0o755)
        project = Project(folder, published.index_url, cache=None)
        project.run(
            "init", OWN, "--extends", TARGET, "--lock", str(published.folder), "--add", "another",
            "--system", "jq", "--file", "train.sh:/opt/team/train.sh",
            "--system", "openssl", "--file", "train.sh:/etc/ssl/private/team.sh",
        )  # fmt: skip
        with (folder / "matrix.yaml").open("a", encoding="utf-8") as matrix:
            matrix.write("    links:\n      /opt/team/go: {to: train.sh, reason: the old name}\n")
        project.run("lock", OWN)
        yield project


def test_docker_build_has_the_same_files_as_imgbuild_build(ours: Project) -> None:
    needs.require_buildx()
    assert (ours.images / OWN / "Dockerfile").is_file()
    ours.run("render", OWN, "--check")
    (answer,) = json.loads(ours.run("diff", OWN, "--builder", "docker", "--json").stdout)
    assert answer["comparison"]["equal"], answer["comparison"]["differences"]
    assert answer["comparison"]["left"]["paths"] > 1000
    # A folder of an added package that gets an added file is unchanged there.
    (added,) = ours.read(f"{OWN}/lock.json")["extends"]["arch"].values()
    assert added["folders"] == {"/etc/ssl/private": {"mode": "0700"}}
    (built,) = json.loads(ours.run("build", OWN, "--builder", "docker", "--json").stdout)
    output = ours.run("run", OWN, "--layout", built["output"], "--through", "root", "--",
                    "/opt/team/go").stdout  # fmt: skip
    assert output == "jq-1.6\n"
