"""Tests rows with `extends` and `like` that are derived from the files of a project.

They extend the published target of test_extend.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from imgbuild.oci import layout
from imgbuild.values import Arch
from tests.integration.test_extend import PublishedSite, layers, paths, published_site
from tests.support import needs
from tests.support.git_repository import GitRepository
from tests.support.inprocess_project import unwrap_text
from tests.support.sample_project import TARGET, Project

__all__ = ("published_site",)
pytestmark = [pytest.mark.engine, pytest.mark.network]

ROW = "trainer"
PYPROJECT = """\
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "My-Trainer"
version = "0.3"
requires-python = ">=3.9"
dependencies = ["torch==2.6.0+cu124", "gadget>=1; python_version >= '3'"]

[project.scripts]
trainer = "my_trainer.train:main"

[project.optional-dependencies]
fast = ["another"]
"""
SCRIPTS = "[project.scripts]\n"
TRAIN = """\
import importlib.metadata

import gadget


def main():
    print(importlib.metadata.version("my-trainer"), gadget.VALUE)
"""


def begin(site: PublishedSite, folder: Path, row: str, **files: str) -> Project:
    """A project with `files`, and a row with a summary and `row`."""
    (folder / "src/my_trainer").mkdir(parents=True)
    (folder / "src/my_trainer/__init__.py").write_text("")
    (folder / "src/my_trainer/train.py").write_text(TRAIN)
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text)
    images = site.published.folder / "images"
    (folder / "published").mkdir()
    (folder / "published" / TARGET).symlink_to(images / TARGET)
    lines = [f"    {line}\n" for line in row.splitlines()]
    (folder / "matrix.yaml").write_text(
        f"version: 1\npublished:\n  {TARGET}: {{lock: published/{TARGET}}}\n"
        f"targets:\n  {ROW}:\n    summary: our project\n{''.join(lines)}"
    )
    return Project(folder, site.site.url("simple"), cache=None)


def versions(project: Project) -> dict[str, str]:
    """The locked versions."""
    lock = project.read(f"{ROW}/lock.json")["arch"]["x86_64"]
    return {item["package"]: item["version"] for item in lock["wheels"]}


def test_installed_project_has_metadata_and_scripts(
    published_site: PublishedSite, tmp_path: Path
) -> None:
    needs.user_namespaces()
    row = f"extends: {TARGET}\nrequirements: [pyproject.toml]\nextras: [fast]"
    text = PYPROJECT.replace(SCRIPTS, f'{SCRIPTS}helper = "my_trainer.train:main"\n')
    project = begin(published_site, tmp_path / "project", row, pyproject_toml=text)
    project.run("lock", ROW)
    assert versions(project).keys() >= {"gadget", "another", "my-trainer"}
    below = layers(published_site.published, TARGET)
    assert layers(project, ROW)[: len(below)] == below
    project.run("build", ROW)
    for command in (
        ["trainer"],
        ["helper"],  # instead of the script of a published package
        ["sh", "-c", "cd / && python -c 'import my_trainer.train as t; t.main()'"],
    ):
        ran = project.run("run", ROW, "--through", "root", "--", *command)
        assert ran.stdout == "0.3 42\n"
    assert project.run("lock", "--check", ROW).returncode == 0

    # Compiled files of an image exist in its next run.
    def shell(script: str, *options: str) -> str:
        return project.run(
            "run", ROW, *options, "--through", "root", "--", "sh", "-c", script
        ).stdout

    look = "cat /var/cache/imgbuild/kernel || echo none"
    shell("echo compiled >/var/cache/imgbuild/kernel")
    assert shell(look) == "compiled\n"
    assert shell(look, "--no-kernel-cache") == "none\n"
    assert shell(look, "--user", "1234:1234") == "none\n"
    assert "kernel caches of images: " in project.run("cache", "info").stdout


def test_row_with_like_prefers_the_versions_of_its_target(
    published_site: PublishedSite, tmp_path: Path
) -> None:
    row = f"like: {TARGET}\nas_of: 2025-12-01\nrequirements: [requirements.txt]"
    text = "torch==2.6.0\nthewheel==2.0\nhelper\n-c bounds.txt\n"
    project = begin(published_site, tmp_path / "project", row, requirements_txt=text)
    (project.folder / "bounds.txt").write_text("another<1\n")
    project.run("lock", ROW)
    assert versions(project)["thewheel"] == "2.0"
    assert versions(project)["another"] == "0.1"
    lock = project.read(f"{ROW}/lock.json")
    assert "extends" not in lock
    assert lock["settings"]["prefix"] == "/opt/venv"
    assert "constraint: another<1" in lock["project"]["requirements"]
    shared = {layer["digest"] for layer in layers(published_site.published, TARGET)}
    assert shared & {layer["digest"] for layer in layers(project, ROW)}


@pytest.mark.long
def test_like_omits_gpus_that_a_package_does_not_support(
    published_site: PublishedSite, tmp_path: Path
) -> None:
    row = f"like: {TARGET}\nas_of: 2025-12-01\nrequirements: [requirements.txt]"
    text = "torch==2.6.0\ncompiler\ngadget\n"
    project = begin(published_site, tmp_path / "any", row, requirements_txt=text)
    ran = project.run("lock", ROW)
    assert "is locked without the GPUs 12.0 of the target in `like`: compiler 1.0" in unwrap_text(
        ran.stderr
    )
    assert project.read(f"{ROW}/lock.json")["settings"]["labels"]["dev.imgbuild.gpu"] == "9.0"
    project.run("lock", "--check", ROW)
    assert "sm_120" not in project.run("audit", ROW).stdout

    # Required GPUs are refused before a file is downloaded.
    row += '\ngpu: ["12.0"]'
    project = begin(published_site, tmp_path / "required", row, requirements_txt=text)
    ran = project.run("lock", ROW, status=4)
    words = unwrap_text(ran.stderr)
    assert "compiler/bin/ptxas cannot assemble code for sm_120" in words
    assert "leave 12.0 out of `gpu:`" in words
    assert "to download" not in words


def test_row_with_extends_reports_every_contradicting_requirement(
    published_site: PublishedSite, tmp_path: Path
) -> None:
    row = f"extends: {TARGET}\nrequirements: [requirements.txt]"
    text = "gadget\ntorch==2.7.0\nthewheel>=2\n"
    project = begin(published_site, tmp_path / "project", row, requirements_txt=text)
    messages = project.run("lock", ROW, status=2).stderr
    assert "requirements.txt:2: torch:" in messages
    assert "requirements.txt:3: thewheel:" in messages
    assert f"like: {TARGET}" in messages


def test_all_impossible_requirements_are_reported_before_resolving(
    published_site: PublishedSite, tmp_path: Path
) -> None:
    row = f"extends: {TARGET}\nrequirements: [requirements.txt]"
    text = "gadget\nabsent\nlate\nanother==7\n"
    project = begin(published_site, tmp_path / "project", row, requirements_txt=text)
    messages = project.run("lock", ROW, status=8).stderr
    assert "resolving" not in messages
    assert "requirements.txt:2: absent: the index has no such package" in messages
    assert "requirements.txt:3: late" in messages
    assert "not before the cut-off 2025-06-20" in messages
    assert "requirements.txt:4: another==7" in messages


@pytest.mark.long
def test_unpinned_torch_is_resolved_for_the_cuda_release_of_the_row(
    published_site: PublishedSite, tmp_path: Path
) -> None:
    row = f"like: {TARGET}\nrequirements: [requirements.txt]"
    text = "torch>=2.6\nthewheel\n"
    project = begin(published_site, tmp_path / "project", row, requirements_txt=text)
    project.run("lock", ROW)
    assert versions(project)["torch"] == "2.6.0"
    (project.folder / "requirements.txt").write_text("torch>=2.6\nmodern\n")
    refused = " ".join(project.run("lock", ROW, status=8).stderr.split())
    assert "CUDA 13.0 instead of 12.4, with torch 2.8.0" in refused
    assert f'write `cuda: "13.0"` in {ROW} of matrix.yaml' in refused
    (project.folder / "requirements.txt").write_text("torch>=2.8\n")
    refused = " ".join(project.run("lock", ROW, status=8).stderr.split())
    assert "CUDA 12.4" in refused
    assert "2.8.0" in refused
    assert "CUDA 13.0" in refused


@pytest.mark.long  # unit/resolve/test_engine_torch.py has the choice
@pytest.mark.parametrize(
    ("requirement", "torch"),
    [
        ("torch>=2.6", "2.6.0"),
        ("torchaudio==2.5.1", "2.5.1"),
    ],
)
def test_sdist_is_built_with_the_torch_of_the_image(
    published_site: PublishedSite, tmp_path: Path, requirement: str, torch: str
) -> None:
    row = f"like: {TARGET}\nrequirements: [requirements.txt]"
    text = f"{requirement}\nkernels\n"
    project = begin(published_site, tmp_path / "project", row, requirements_txt=text)
    with (project.folder / "matrix.yaml").open("a") as matrix:
        matrix.write("sdists: {kernels: {reason: only an sdist exists, requires: [torch]}}\n")
    project.run("lock", ROW)
    (built,) = project.read(f"{ROW}/lock.json")["arch"]["x86_64"]["built"]
    assert ("torch", torch) in {(item["package"], item["version"]) for item in built["requires"]}


@pytest.mark.long  # unit/resolve/test_conflict.py has the rules
def test_resolution_to_outdated_packages_is_refused(
    published_site: PublishedSite, tmp_path: Path
) -> None:
    row = f"like: {TARGET}\nrequirements: [requirements.txt]"
    text = "torch==2.6.0\ndrift<=0.6\n"
    project = begin(published_site, tmp_path / "project", row, requirements_txt=text)
    refused = " ".join(project.run("lock", ROW, status=8).stderr.split())
    newest = (
        "requires drift<=0.6, but the newest version of drift, 0.6 of 2025-01, is not installable"
    )
    assert f"{newest}, nor is any version after 0.2" in refused
    assert "vanished was not found" in refused
    assert "drift==0.2" in refused
    (project.folder / "requirements.txt").write_text("torch==2.6.0\nvllm<=0.6.3\n")
    refused = unwrap_text(project.run("lock", ROW, status=8).stderr)
    assert (
        "requires vllm<=0.6.3, but the newest version of vllm, 0.6.3 of 2024-10, is not" in refused
    )
    assert "sourced: only an sdist exists, and the matrix does not list sourced" in refused
    assert "pin vllm==0.5.1 to use the old one" in refused
    for accepted in ("drift==0.2", "drift>=0.1,<=0.6"):
        (project.folder / "requirements.txt").write_text(f"torch==2.6.0\n{accepted}\n")
        project.run("lock", ROW)
        assert versions(project)["drift"] == "0.2"


@pytest.mark.long  # unit/resolve/test_conflict.py has the rules
def test_required_outdated_version_is_locked_with_a_warning(
    published_site: PublishedSite, tmp_path: Path
) -> None:
    row = f"like: {TARGET}\nrequirements: [requirements.txt]"
    text = "torch==2.6.0\nthewheel<2\neager\n"
    project = begin(published_site, tmp_path / "project", row, requirements_txt=text)
    messages = " ".join(project.run("lock", ROW).stderr.split())
    assert versions(project)["eager"] == "1.0"
    assert "eager 1.0 was uploaded in 2024-01; 2.0 of 2025-01 is available" in messages
    assert "thewheel<2" in messages


@pytest.mark.long
def test_preferred_version_does_not_force_an_outdated_package(
    published_site: PublishedSite, tmp_path: Path
) -> None:
    row = f"like: {TARGET}\nrequirements: [requirements.txt]"
    text = "torch==2.6.0\nthewheel\neager\n"
    project = begin(published_site, tmp_path / "project", row, requirements_txt=text)
    project.run("lock", ROW)
    assert versions(project).items() >= {"thewheel": "2.0", "eager": "2.0"}.items()


def test_changed_requirement_makes_lock_stale_but_changed_comment_does_not(
    published_site: PublishedSite, tmp_path: Path
) -> None:
    row = f"extends: {TARGET}\nrequirements: [requirements.txt]"
    project = begin(published_site, tmp_path / "project", row, requirements_txt="gadget\n")
    project.run("lock", ROW)
    path = project.folder / "requirements.txt"
    path.write_text("# what the trainer needs\ngadget   # the newest\n")
    assert project.run("lock", "--check", ROW).returncode == 0
    path.write_text("gadget\nanother\n")
    messages = project.run("lock", "--check", ROW, status=5).stderr
    assert "the project now requires another" in messages


@pytest.mark.long
def test_excluded_package_is_reported_with_the_packages_that_require_it(
    published_site: PublishedSite, tmp_path: Path
) -> None:
    row = (
        f"like: {TARGET}\nrequirements: [requirements.txt]\n"
        'exclude: {another: "it compiles for an hour"}'
    )
    text = "torch==2.6.0\nthewheel==2.0\npuzzles\n"
    project = begin(published_site, tmp_path / "project", row, requirements_txt=text)
    (project.folder / "src/my_trainer/fast.py").write_text("import another.core\n")
    places = "src/my_trainer/fast.py:1, puzzles 1.0 (puzzles.py:1)"
    needed = f"another is excluded, and these imports fail without it: {places};"
    assert needed in unwrap_text(project.run("lock", ROW).stderr)
    assert "another" not in versions(project)
    report, code = json.loads(project.run("audit", ROW, "--json", status=4).stdout)
    # The code of the project imports two packages that these requirements do not have.
    assert [item["code"] for item in code["findings"]] == ["IMG101", "IMG101"]
    warnings = [item["message"] for item in report["findings"] if item["severity"] == "warning"]
    assert any(
        "requires another" in message and "excluded: it compiles for an hour" in message
        for message in warnings
    )


@pytest.mark.long
def test_install_with_the_no_deps_option_ignores_version_conflicts(
    published_site: PublishedSite, tmp_path: Path
) -> None:
    row = f"like: {TARGET}\nrequirements: [Dockerfile]"
    text = (
        "FROM python:3.11\nRUN pip install torch==2.6.0 helper\nRUN pip install --no-deps strict\n"
    )
    project = begin(published_site, tmp_path / "project", row)
    (project.folder / "Dockerfile").write_text(text)
    project.run("lock", ROW)
    assert versions(project)["helper"] == "0.5"
    report, code = json.loads(project.run("audit", ROW, "--json", status=4).stdout)
    # The code of the project imports a package that these requirements do not have.
    assert [item["code"] for item in code["findings"]] == ["IMG101"]
    warnings = [item["message"] for item in report["findings"] if item["severity"] == "warning"]
    assert any("requires helper<0.5" in message and "--no-deps" in message for message in warnings)


def test_relaxed_version_replaces_the_declared_version(
    published_site: PublishedSite, tmp_path: Path
) -> None:
    row = (
        f"extends: {TARGET}\nrequirements: [requirements.txt]\n"
        'relax: {thewheel: {spec: "==1.0", reason: the target has it}}'
    )
    text = "thewheel==2.0\ngadget\n"
    project = begin(published_site, tmp_path / "project", row, requirements_txt=text)
    project.run("lock", ROW)
    assert versions(project)["thewheel"] == "1.0"


def test_project_that_requires_another_python_is_refused(
    published_site: PublishedSite, tmp_path: Path
) -> None:
    row = f"extends: {TARGET}\nrequirements: [pyproject.toml]"
    text = PYPROJECT.replace(">=3.9", "==3.10.*")
    project = begin(published_site, tmp_path / "project", row, pyproject_toml=text)
    messages = project.run("lock", ROW, status=2).stderr
    assert "pyproject.toml:8: the project requires Python ==3.10.*" in messages
    assert "relax: {python:" in messages


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("requirements: [requirements.txt]", "a row must have exactly one of `extends` and `like`"),
        (
            f"extends: {TARGET}\nlike: {TARGET}",
            "a row must have exactly one of `extends` and `like`",
        ),
        (f"extends: {TARGET}\nrequirements: [../other.txt]", "the file is outside the repository"),
        (f"extends: {TARGET}\nadd: [not a requirement]", "not a valid PEP 508 requirement"),
        (f"extends: {TARGET}\nextras: [fast]", "applies to the files listed in `requirements`"),
        (
            f'extends: {TARGET}\ncuda: "12.6"',
            "the CUDA release is already set by the published target",
        ),
    ],
)
def test_invalid_row_keys_are_reported_together(
    published_site: PublishedSite, tmp_path: Path, row: str, words: str
) -> None:
    project = begin(published_site, tmp_path / "project", row, requirements_txt="gadget\n")
    messages = project.run("lock", ROW, status=2).stderr
    assert words in messages
    assert "matrix.yaml:" in messages


def test_layer_of_committed_files_has_the_same_digest_in_every_clone(
    published_site: PublishedSite, tmp_path: Path
) -> None:
    needs.user_namespaces()
    row = f"extends: {TARGET}\nrequirements: [pyproject.toml]\nextras: [fast]"
    repository = GitRepository(tmp_path / "project")
    project = begin(published_site, repository.folder, row, pyproject_toml=PYPROJECT)
    (project.folder / "run.sh").write_text("#!/bin/sh\nexec trainer\n")
    (project.folder / "run.sh").chmod(0o755)
    (project.folder / ".imgbuild/images").mkdir(parents=True)
    (project.folder / ".imgbuild/.gitignore").write_text("build\n")
    project.run("lock", ROW)
    assert "has no commit" in project.run("build", "--with-project", status=2).stderr
    repository.commit({})
    (first,) = json.loads(project.run("build", "--with-project", "--json").stdout)
    clone = Project(tmp_path / "clone", project.index_url, cache=None)
    repository.git("clone", "--quiet", str(project.folder), str(clone.folder))
    (clone.folder / "run.sh").chmod(0o700)
    (clone.folder / "src/my_trainer/train.py").write_text("raise SystemExit('not committed')\n")
    (clone.folder / "new.py").write_text("")
    ran = clone.run("build", "--with-project", "--json")
    (second,) = json.loads(ran.stdout)
    assert second["digest"] == first["digest"]
    assert second["digest"] != project.read(f"{ROW}/digests.json")["digest"]
    assert "2 files of" in ran.stderr
    assert "new.py, src/my_trainer/train.py" in ran.stderr
    output = clone.folder / f".imgbuild/build/{ROW}-with-project"
    image = layout.read_layout(output).image(Arch.X86_64)
    commit = repository.git("rev-parse", "HEAD")
    assert image.configuration.labels["org.opencontainers.image.revision"] == commit
    modes = paths(output, image.layers[-1].digest)
    assert modes["workspace"] == 0o1777
    assert modes["workspace/run.sh"] == 0o755
    assert modes["workspace/src/my_trainer/train.py"] == 0o644
    assert not {"workspace/matrix.yaml", "workspace/.imgbuild", "workspace/new.py"} & modes.keys()
    options = ("--layout", str(output), "--through", "root", "--")
    for command in (["./run.sh"], ["sh", "-c", "cd / && trainer"]):
        assert clone.run("run", ROW, *options, *command).stdout == "0.3 42\n"
