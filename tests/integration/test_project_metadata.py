"""Tests that locking a row runs the project's build backend for dynamic metadata in the sandbox."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.test_extend import PublishedSite, published_site
from tests.integration.test_project_rows import ROW, begin, versions
from tests.support import needs
from tests.support.git_repository import GitRepository
from tests.support.sample_project import TARGET, Project

__all__ = ("published_site",)
pytestmark = [pytest.mark.engine, pytest.mark.network]

PYPROJECT = """\
[build-system]
requires = []
build-backend = "own"
backend-path = ["."]

[project]
name = "My-Trainer"
dynamic = ["version", "dependencies", "optional-dependencies", "scripts"]

[tool.own]
version-of = "git"  # use_scm_version
"""
# A backend without dependencies that computes its metadata. It leaves a file if it runs on this
# machine and not in the sandbox.
BACKEND = """\
import os, sys
OUTSIDE = {outside!r}
def prepare_metadata_for_build_wheel(folder, settings=None):
    if os.path.isdir(os.path.dirname(OUTSIDE)):
        open(OUTSIDE, "w").close()
    version = {version}
    info = f"my_trainer-{{version}}.dist-info"
    os.mkdir(os.path.join(folder, info))
    lines = ["Metadata-Version: 2.1", "Name: my-trainer", f"Version: {{version}}",
             "Provides-Extra: fast", "Requires-Dist: gadget>=1",
             'Requires-Dist: another; extra == "fast"',
             "Requires-Dist: nosuch; python_version < '3'"]
    with open(os.path.join(folder, info, "METADATA"), "w") as file:
        file.write("\\n".join(lines) + "\\n")
    with open(os.path.join(folder, info, "entry_points.txt"), "w") as file:
        file.write("[console_scripts]\\ntrainer = my_trainer.train:main\\n")
    return info
"""
SCRIPT = "import secrets; from setuptools import setup; setup(**secrets.compute())\n"


def project(site: PublishedSite, tmp_path: Path, version: str, row: str = "") -> Project:
    """A project with dynamic metadata. `version` is an expression in its backend."""
    needs.user_namespaces()
    row = f"extends: {TARGET}\nrequirements: [pyproject.toml]\n{row}".strip()
    result = begin(site, tmp_path / "project", row, pyproject_toml=PYPROJECT)
    (result.folder / ".imgbuild").mkdir()
    outside = str(tmp_path / "ran-on-the-host")
    (result.folder / "own.py").write_text(BACKEND.format(outside=outside, version=version))
    return result


def lock(project: Project, version: str) -> str:
    """The messages of `lock` with a version in the environment."""
    project.env["SETUPTOOLS_SCM_PRETEND_VERSION"] = version
    done = project.run("lock", ROW)
    del project.env["SETUPTOOLS_SCM_PRETEND_VERSION"]
    return done.stdout + done.stderr


def packages(project: Project) -> dict[str, object]:
    return dict(project.read(f"{ROW}/lock.json")["project"]["packages"]["my-trainer"])


def test_version_requirements_and_scripts_from_the_build_backend_are_locked(
    published_site: PublishedSite, tmp_path: Path
) -> None:
    trainer = project(published_site, tmp_path, "'0.' + str(3)", "extras: [fast]")
    messages = lock(trainer, "9")
    assert versions(trainer).items() >= {"my-trainer": "0.3"}.items()
    assert versions(trainer).keys() >= {"gadget", "another"}
    assert packages(trainer)["scripts"] == {"trainer": "my_trainer.train:main"}
    assert "gadget>=1" in packages(trainer)["requires"]  # type: ignore[operator]
    assert not (tmp_path / "ran-on-the-host").exists()
    assert "running the build backend of my-trainer" in messages
    assert trainer.run("lock", "--check", ROW).returncode == 0
    (trainer.folder / "training.py").write_text("print(1)\n")  # the backend does not read it
    assert "running the build backend" not in lock(trainer, "9")
    trainer.run("build", ROW)
    assert trainer.run("run", ROW, "--through", "root", "--", "trainer").stdout == "0.3 42\n"
    backend = trainer.folder / "own.py"
    backend.write_text(backend.read_text().replace("another", "helper"))
    assert "running the build backend" in lock(trainer, "9")
    assert "another" not in versions(trainer)


@pytest.mark.long  # test_direct_requirements.py has the versions of git repositories
def test_version_from_git_tags_is_derived_from_history_or_a_variable(
    published_site: PublishedSite, tmp_path: Path
) -> None:
    version = "os.environ['SETUPTOOLS_SCM_PRETEND_VERSION']"
    trainer = project(published_site, tmp_path, version)
    refused = trainer.run("lock", ROW)
    text = " ".join((refused.stderr + refused.stdout).split())
    assert "pyproject.toml: the build backend provides no version" in text
    assert "is not in a git repository" in text
    assert "SETUPTOOLS_SCM_PRETEND_VERSION=1.0 imgbuild lock" in text
    assert packages(trainer)["version"] == "0.0.0"
    lock(trainer, "4.5")
    assert packages(trainer)["version"] == "4.5"
    GitRepository(tmp_path / "repository").commit({"a": "b"}, tag="v2.1")
    (tmp_path / "repository/.git").rename(trainer.folder / ".git")
    trainer.run("lock", ROW)
    assert packages(trainer)["version"] == "2.1"


def test_failing_build_backend_is_reported_with_a_reason(
    published_site: PublishedSite, tmp_path: Path
) -> None:
    trainer = project(published_site, tmp_path, "sys.exit('no GPU here')")
    text = " ".join(lock(trainer, "9").split())
    assert "no GPU here" in text
    assert "the version is set to 0.0.0, add the requirements with imgbuild add" in text
    assert packages(trainer)["version"] == "0.0.0"


@pytest.mark.long  # the first test has the other fields
def test_computed_package_name_is_read_from_the_build_backend(
    published_site: PublishedSite, tmp_path: Path
) -> None:
    needs.user_namespaces()
    row = f"extends: {TARGET}\nrequirements: [setup.py]"
    trainer = begin(published_site, tmp_path / "project", row, setup_py=SCRIPT)
    outside = str(tmp_path / "ran-on-the-host")
    (trainer.folder / "own.py").write_text(BACKEND.format(outside=outside, version="'1.5'"))
    (trainer.folder / "pyproject.toml").write_text(PYPROJECT.partition("[project]")[0])
    trainer.run("lock", ROW)
    assert versions(trainer)["my-trainer"] == "1.5"
    assert "gadget" in versions(trainer)
    assert trainer.run("lock", "--check", ROW).returncode == 0
    (trainer.folder / "setup.py").write_text(f"{SCRIPT}# changed\n")
    stale = trainer.run("lock", "--check", ROW, status=5)
    message = "the setup.py of my-trainer, which the build backend runs, has changed"
    assert message in " ".join(stale.stderr.split())
    trainer.run("lock", ROW)
    assert trainer.run("lock", "--check", ROW).returncode == 0
    (trainer.folder / "train.py").write_text("print(1)\n")
    assert trainer.run("lock", "--check", ROW).returncode == 0
