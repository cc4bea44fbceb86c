"""Tests `audit -r` and `resolve` with project files without exact versions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from imgbuild.values import Arch
from tests.integration.test_resolve_command import index
from tests.support import images, sample_project
from tests.support.local_index import LocalIndex, sdist_bytes
from tests.support.sample_project import Project
from tests.support.servers import FileSite, serve_site

PYPROJECT = """\
[project]
name = "ours"
version = "1"
dependencies = ["torch==2.6.0+cu124", "thewheel>=1", "helper; sys_platform == 'win32'"]
"""


@pytest.fixture(name="project")
def _project(tmp_path: Path) -> Iterator[Project]:
    images.python_base(tmp_path, tuple(Arch))
    with serve_site(FileSite(files=index().site_files())) as site:
        project = Project(tmp_path / "project", site.url("simple"), cache=tmp_path / "cache")
        base = sample_project.serve_image(site, tmp_path / "base", "base")
        project.write(sample_project.registry_base(base))
        yield project


def write(project: Project, **files: str) -> None:
    for name, text in files.items():
        path = project.folder / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


def test_open_requirements_are_resolved_and_audited(project: Project) -> None:
    nested = "kit[more]\nthewheel; python_version < '3'\n"
    write(project, requirements_txt="thewheel<2\n-r in/more.txt\n", in__more_txt=nested)
    audited = project.run("audit", "-r", "requirements.txt", "--json")
    assert "2 of 2 packages have no exact version; resolving all packages" in audited.stderr
    (report,) = json.loads(audited.stdout)
    assert not [item for item in report["findings"] if item["severity"] == "error"]
    assert "auditing 5 pins of requirements.txt" in audited.stderr
    write(project, pins_txt="thewheel==1.0\nhelper==0.5\n")
    assert "solved" not in project.run("audit", "-r", "pins.txt").stderr


def test_audit_reports_incompatible_resolution(project: Project) -> None:
    write(project, requirements_txt="engine<2\ntrl\n")
    assert "engine" in project.run("audit", "-r", "requirements.txt", status=4).stdout


def test_sdists_are_resolved_with_the_requirements_that_they_declare(
    project: Project, tmp_path: Path
) -> None:
    local_index = index()
    local_index.wheel("config", "0.9", files={"config.py": b""})
    local_index.wheel("config", "1.3", ["grammar==4.9"], files={"config.py": b""})
    for version, needs in (("4.9", b"Requires-Dist: helper<1\n"), ("5.0", b"")):
        about = b"Metadata-Version: 2.1\nName: grammar\nVersion: " + version.encode() + b"\n"
        files = {"PKG-INFO": about + needs, "grammar/__init__.py": b""}
        data = sdist_bytes("grammar", version, files)
        local_index.add("grammar", f"grammar-{version}.tar.gz", data)
    with serve_site(FileSite(files=local_index.site_files())) as site:
        own = Project(tmp_path / "own", site.url("simple"), cache=tmp_path / "cache")
        write(own, requirements_txt="config\n", use_py="from grammar import gone\n")
        audited = own.run("audit", "-r", "requirements.txt", "--code", "use.py", "--json", status=4)
    (report,) = json.loads(audited.stdout)
    assert "auditing 3 pins of requirements.txt" in audited.stderr
    (finding,) = report["findings"]
    assert "grammar 4.9 does not define it" in finding["message"]


def test_missing_versions_are_refused_with_a_reason(project: Project) -> None:
    write(project, requirements_txt="thewheel>5\n")
    refused = project.run("audit", "-r", "requirements.txt", status=8)
    assert "no versions are compatible with Python" in refused.stderr
    assert "thewheel>5" in refused.stderr.replace(" ", "")


def test_git_repository_in_requirements_is_reported_as_not_read(project: Project) -> None:
    write(project, requirements_txt="thewheel\ngone @ git+https://example.org/gone@v1\n")
    audited = project.run("audit", "-r", "requirements.txt", status=4)
    assert "not read: gone @ git+https://example.org/gone@v1" in audited.stdout


@pytest.mark.parametrize(
    "words",
    [
        ("pyproject.toml",),
        *(
            pytest.param(words, marks=pytest.mark.long)
            for words in (("-r", "pyproject.toml"), ("--requirements", "."))
        ),
    ],
)
def test_resolve_reads_project_files(project: Project, words: tuple[str, ...]) -> None:
    write(project, pyproject_toml=PYPROJECT)
    answer = json.loads(project.run("resolve", *words, "--arch", "x86_64", "--json").stdout)
    assert answer["target"]["cuda"] == "12.4"
    assert answer["target"]["pins"] == {"torch": "2.6.0", "thewheel": "2.0"}
    assert answer["requested"] == ["thewheel", "torch"]


@pytest.mark.long
def test_version_bounds_in_files_and_on_the_command_line_are_combined(project: Project) -> None:
    write(project, requirements_txt="thewheel>=1\ntorch\n")
    words = ("thewheel<2", "-r", "requirements.txt", "--arch", "x86_64", "--json")
    answer = json.loads(project.run("resolve", *words).stdout)
    assert answer["target"]["pins"]["thewheel"] == "1.0"


def test_missing_requirements_file_is_reported(project: Project) -> None:
    refused = project.run("resolve", "in/requirements.txt", status=2).stderr
    assert "in/requirements.txt: no such file or folder" in refused


@pytest.fixture
def private() -> Iterator[str]:
    """An index with a package that the default index lacks, and with dependencies."""
    files = LocalIndex()
    files.wheel("team-rewards", "1.4", ["team-base>=2"])
    files.wheel("team-base", "2.0")
    with serve_site(FileSite(files=files.site_files())) as site:
        yield site.url("simple")


@pytest.mark.parametrize(
    "text",
    [
        "--extra-index-url {index}\nthewheel\nteam-rewards\n",
        "-i {index}\nthewheel==1.0\nhelper==0.5\nteam-rewards==1.4\nteam-base==2.0\n",
        "-r named.txt\nthewheel==1.0\nhelper==0.5\nteam-rewards==1.4\nteam-base==2.0\n",
    ],
    ids=["open", "pinned", "nested"],
)
def test_audit_uses_indexes_declared_in_file(project: Project, private: str, text: str) -> None:
    write(project, requirements_txt=text.format(index=private))
    write(project, named_txt=f"--extra-index-url={private}\n")
    audited = project.run("audit", "-r", "requirements.txt", "--json")
    assert f"team-base, team-rewards: from the index {private}" in audited.stderr
    (report,) = json.loads(audited.stdout)
    assert not [item for item in report["findings"] if item["severity"] == "error"]
    assert not [item for item in report["unread"] if "team" in item["what"]]


def test_audit_uses_indexes_declared_in_stdin(project: Project, private: str) -> None:
    pins = f"--extra-index-url {private}\nteam-rewards==1.4\nteam-base==2.0\n"
    (report,) = json.loads(project.run("audit", "-r", "-", "--json", stdin=pins).stdout)
    assert not report["unread"]


def test_audit_uses_wheel_folder_declared_in_file(
    project: Project,
) -> None:
    write(project, in__requirements_txt="--find-links wheels\nteam-rewards==1.4\n")
    wheel = LocalIndex().wheel("team-rewards", "1.4")
    (project.folder / "in/wheels").mkdir()
    (project.folder / "in/wheels" / wheel.file).write_bytes(wheel.data)
    (report,) = json.loads(project.run("audit", "-r", "in/requirements.txt", "--json").stdout)
    assert not report["unread"]


def test_unreachable_index_declared_in_a_file_is_reported(project: Project) -> None:
    text = "--extra-index-url http://localhost:9/simple\nthewheel==1.0\nteam-rewards==1.4\n"
    write(project, requirements_txt=text)
    audited = project.run("audit", "-r", "requirements.txt", status=4)
    assert "requirements.txt:1: the index http://localhost:9/simple cannot be read" in " ".join(
        audited.stderr.split()
    )
    assert "team-rewards==1.4" in audited.stdout


def test_resolve_uses_indexes_declared_in_file(project: Project, private: str) -> None:
    write(project, requirements_txt=f"--extra-index-url {private}\ntorch\nteam-rewards\n")
    words = ("resolve", "-r", "requirements.txt", "--arch", "x86_64")
    answered = project.run(*words, "--json")
    assert f"team-base, team-rewards: from the index {private}" in answered.stderr
    assert json.loads(answered.stdout)["target"]["pins"]["team-rewards"] == "1.4"
    before, _, after = project.run(*words).stdout.partition("# for matrix.yaml, under indexes:")
    ((name, index),) = yaml.safe_load(after).items()
    assert index["url"] == private
    (row,) = yaml.safe_load(before.partition("under targets:")[2]).values()
    assert row["indexes"] == {"team-base": name, "team-rewards": name}
