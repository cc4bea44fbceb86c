"""`audit -r` and `resolve` with files of a project that name no exact versions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from imgbuild.values import Arch
from tests.integration.test_resolve_command import index
from tests.support import images, sample_project
from tests.support.sample_project import Project
from tests.support.servers import Site, serve

PYPROJECT = """\
[project]
name = "ours"
version = "1"
dependencies = ["torch==2.6.0+cu124", "thewheel>=1", "helper; sys_platform == 'win32'"]
"""


@pytest.fixture(name="project")
def _project(tmp_path: Path) -> Iterator[Project]:
    images.python_base(tmp_path, tuple(Arch))
    with serve(Site(files=index().site_files())) as site:
        project = Project(tmp_path / "project", site.url("simple"), cache=tmp_path / "cache")
        base = sample_project.serve_image(site, tmp_path / "base", "base")
        project.write(sample_project.registry_base(base))
        yield project


def write(project: Project, **files: str) -> None:
    for name, text in files.items():
        path = project.folder / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


def test_requirements_without_versions_are_solved_for_and_audited(project: Project) -> None:
    nested = "kit[more]\nthewheel; python_version < '3'\n"
    write(project, requirements_txt="thewheel<2\n-r in/more.txt\n", in__more_txt=nested)
    audited = project.run("audit", "-r", "requirements.txt", "--json")
    assert "2 of 2 packages have no exact version: all are solved first" in audited.stderr
    (report,) = json.loads(audited.stdout)
    assert not [item for item in report["findings"] if item["severity"] == "error"]
    assert "auditing 5 pins of requirements.txt" in audited.stderr
    write(project, pins_txt="thewheel==1.0\nhelper==0.5\n")
    assert "solved" not in project.run("audit", "-r", "pins.txt").stderr


def test_what_is_solved_is_what_the_audit_refuses(project: Project) -> None:
    write(project, requirements_txt="engine<2\ntrl\n")
    audited = project.run("audit", "-r", "requirements.txt", status=4)
    assert "engine" in audited.stdout


def test_versions_that_do_not_exist_are_refused_with_the_reason(project: Project) -> None:
    write(project, requirements_txt="thewheel>5\n")
    refused = project.run("audit", "-r", "requirements.txt", status=8)
    assert "no versions fit Python" in refused.stderr
    assert "thewheel>5" in refused.stderr.replace(" ", "")


def test_a_git_address_among_requirements_is_named_as_not_read(project: Project) -> None:
    write(project, requirements_txt="thewheel\ngone @ git+https://example.org/gone@v1\n")
    audited = project.run("audit", "-r", "requirements.txt", status=4)
    assert "not read: gone @ git+https://example.org/gone@v1" in audited.stdout


@pytest.mark.parametrize(
    "words", [("pyproject.toml",), ("-r", "pyproject.toml"), ("--requirements", ".")]
)
def test_resolve_takes_the_files_of_a_project(project: Project, words: tuple[str, ...]) -> None:
    write(project, pyproject_toml=PYPROJECT)
    answer = json.loads(project.run("resolve", *words, "--arch", "x86_64", "--json").stdout)
    assert answer["target"]["cuda"] == "12.4"
    assert answer["target"]["pins"] == {"torch": "2.6.0", "thewheel": "2.0"}
    assert answer["requested"] == ["thewheel", "torch"]


def test_bounds_of_files_and_of_the_command_line_hold_together(project: Project) -> None:
    write(project, requirements_txt="thewheel>=1\ntorch\n")
    words = ("thewheel<2", "-r", "requirements.txt", "--arch", "x86_64", "--json")
    answer = json.loads(project.run("resolve", *words).stdout)
    assert answer["target"]["pins"]["thewheel"] == "1.0"


def test_a_file_that_does_not_exist_is_named(project: Project) -> None:
    refused = project.run("resolve", "in/requirements.txt", status=2).stderr
    assert "in/requirements.txt: no such file or folder" in refused
