"""Tests reading uv locks, git repositories and public projects."""

from __future__ import annotations

import itertools
import os
import subprocess
from pathlib import Path

import msgspec
import pytest

from imgbuild.errors import FetchFailed, InputError
from imgbuild.project import fetch, uv_lock
from imgbuild.project.read import read_declared
from tests.support.user_projects import (
    read_declarations,
    requirement_texts,
    unread_reasons,
    write_project,
)

PUBLIC = Path(os.environ.get("IMGBUILD_PROJECTS", "/work/shared/projects"))
SHA = {digit: f"sha256:{digit * 64}" for digit in "0123456789abcdef"}

PYPROJECT = """\
[project]
name = "app"
version = "1"
requires-python = ">=3.11"
dependencies = ["torch>=2.6", "numpy", "member", "tools"]
[project.optional-dependencies]
serve = ["fastapi"]
[dependency-groups]
dev = ["pytest"]
track = ["wandb"]
[tool.uv]
default-groups = ["dev", "track"]
[tool.uv.workspace]
members = ["packages/*"]
[tool.uv.sources]
member = { workspace = true }
tools = { git = "https://git.example/tools.git", rev = "v1" }
torch = { index = "pytorch" }
[[tool.uv.index]]
name = "pytorch"
url = "https://download.pytorch.org/whl/cu124"
explicit = true
"""
MEMBER = '[project]\nname = "member"\nversion = "1"\nrequires-python = ">=3.11"\n'
MEMBER += 'dependencies = ["tqdm"]\n'


def _registry(name: str, version: str, digit: str, more: str = "", index: str = "i.example") -> str:
    file = f"https://files.example/{name}-{version}"
    return (
        f'[[package]]\nname = "{name}"\nversion = "{version}"\n'
        f'source = {{ registry = "https://{index}" }}\n{more}'
        f'sdist = {{ url = "{file}.tar.gz", hash = "{SHA[digit]}", size = 9,'
        ' upload-time = "2026-01-02T10:00:00Z" }\n'
        f'wheels = [{{ url = "{file}-py3-none-any.whl", hash = "{SHA["f"]}", size = 9 }}]\n\n'
    )


LOCK = (
    'version = 1\nrevision = 3\nrequires-python = ">=3.11"\n'
    "resolution-markers = [\"python_full_version >= '3.12'\", \"python_full_version < '3.12'\"]\n\n"
    '[manifest]\nmembers = ["app", "member"]\n\n'
    '[[package]]\nname = "app"\nversion = "1"\nsource = { virtual = "." }\n'
    "dependencies = [\n"
    '  { name = "torch" },\n  { name = "member" },\n  { name = "tools" },\n'
    '  { name = "numpy", version = "2.2.6", source = { registry = "https://i.example" },'
    " marker = \"python_full_version < '3.12'\" },\n"
    '  { name = "numpy", version = "2.3.0", source = { registry = "https://i.example" },'
    " marker = \"python_full_version >= '3.12'\" },\n]\n"
    '[package.optional-dependencies]\nserve = [{ name = "fastapi" }]\n'
    '[package.dev-dependencies]\ndev = [{ name = "pytest" }]\ntrack = [{ name = "wandb" }]\n'
    '[package.metadata]\nprovides-extras = ["serve"]\n\n'
    '[[package]]\nname = "member"\nversion = "1"\nsource = { editable = "packages/one" }\n'
    'dependencies = [{ name = "tqdm" }]\n\n'
    '[[package]]\nname = "tools"\nversion = "1"\n'
    'source = { git = "https://git.example/tools.git?rev=v1#' + "0" * 40 + '" }\n\n'
    + _registry("numpy", "2.2.6", "1")
    + _registry("numpy", "2.3.0", "2")
    + _registry("torch", "2.6.0+cu124", "3", index="download.pytorch.org/whl/cu124")
    + _registry("tqdm", "4.67.1", "4", 'dependencies = [{ name = "colorama", marker ='
                " \"sys_platform == 'win32'\" }]\n")
    + _registry("colorama", "0.4.6", "5")
    + _registry("fastapi", "0.115.0", "6")
    + _registry("pytest", "8.3.0", "7")
    + _registry("wandb", "0.19.11", "8")
)  # fmt: skip
FILES = {"pyproject.toml": PYPROJECT, "uv.lock": LOCK, "packages/one/pyproject.toml": MEMBER}


@pytest.mark.parametrize(("extras", "groups"), [((), ()), (("serve",), ("dev",))])
def test_uv_lock_is_read_with_and_without_uv(tmp_path, monkeypatch, extras, groups):
    result = read_declarations(tmp_path, FILES, extras=extras, groups=groups)
    locked = {each.text: each.hashes for each in result.requirements if each.locked}
    assert set(locked) == {
        "torch==2.6.0",
        'numpy==2.2.6; python_full_version < "3.12"',
        'numpy==2.3.0; python_full_version >= "3.12"',
        f"tools @ git+https://git.example/tools.git@{'0' * 40}",
        "tqdm==4.67.1",
        "wandb==0.19.11",
        *(("fastapi==0.115.0", "pytest==8.3.0") if extras else ()),
    }
    assert locked["torch==2.6.0"] == (SHA["3"], SHA["f"])
    assert {each.name for each in result.cuda} == {"12.4"}
    assert [each.name for each in result.packages] == ["app", "member"]
    assert result.cut_off is not None
    assert str(result.cut_off.day) == "2026-01-03"
    places = {each.text: str(each.place) for each in result.requirements if each.locked}
    line = LOCK.split("\n").index('name = "torch"') + 1
    assert places["torch==2.6.0"] == f"uv.lock:{line}"

    called = []
    monkeypatch.setattr(uv_lock, "_export_pylock", lambda *_: called.append(1))
    other = read_declared(tmp_path, extras=extras, groups=groups)
    assert set(other.requirements) == set(result.requirements)
    assert msgspec.structs.replace(other, requirements=result.requirements) == result
    assert called


def test_upload_times_with_and_without_a_time_zone_are_compared(tmp_path, monkeypatch):
    monkeypatch.setattr(uv_lock, "_export_pylock", lambda *_: None)
    lock = LOCK.replace("2026-01-02T10:00:00Z", "2026-01-01T10:00:00", 1)
    result = read_declarations(tmp_path, {**FILES, "uv.lock": lock})
    assert result.cut_off is not None
    assert str(result.cut_off.day) == "2026-01-03"


def test_outdated_uv_lock_is_ignored(tmp_path):
    newer = PYPROJECT.replace('"torch>=2.6"', '"torch>=2.7"')
    result = read_declarations(tmp_path, {**FILES, "pyproject.toml": newer})
    assert "torch==2.6.0" in unread_reasons(result)["uv.lock"]
    assert not any(each.locked for each in result.requirements)


def test_uv_ignores_user_settings_and_variables(tmp_path, monkeypatch):
    monkeypatch.setenv("UV_NO_HASHES", "1")
    monkeypatch.setenv("UV_CONFIG_FILE", str(tmp_path / "missing.toml"))
    result = read_declarations(tmp_path / "p", {**FILES, "uv.toml": "broken ["})
    assert all(each.hashes for each in result.requirements if each.text == "tqdm==4.67.1")


def _git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=n", "-c", "user.email=e@example")
    settings = (*identity, "-c", "protocol.file.allow=always")
    command = ["git", *settings, *words]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = write_project(
        tmp_path / "source", {"requirements.txt": "torch\n", "lib/setup.cfg": ""}
    )
    _git(folder, "init", "-q", "-b", "main")
    _git(folder, "add", ".")
    _git(folder, "commit", "-q", "-m", "one")
    _git(folder, "tag", "v1")
    write_project(folder, {"requirements.txt": "torch\npeft\n"})
    _git(folder, "commit", "-q", "-a", "-m", "two")
    return folder


def test_requirements_are_read_from_the_requested_revision_of_a_repository(tmp_path, repository):
    commit = _git(repository, "rev-parse", "v1").strip()
    for number, revision in enumerate(("v1", commit, commit[:10])):
        address = fetch.parse_revision_address(f"git+file://{repository}@{revision}")
        fetched = fetch.clone_repository(address, tmp_path / f"clone{number}")
        assert fetched.commit == commit
        assert requirement_texts(read_declared(fetched.folder)) == ["torch"]
    newest = fetch.clone_repository(
        fetch.parse_revision_address(f"file://{repository}"), tmp_path / "newest"
    )
    assert requirement_texts(read_declared(newest.folder)) == ["torch", "peft"]
    inner = fetch.parse_revision_address(f"file://{repository}@main#subdirectory=lib")
    assert fetch.clone_repository(inner, tmp_path / "inner").folder == tmp_path / "inner" / "lib"


def test_repository_code_is_not_run_and_submodules_are_listed(tmp_path, repository, monkeypatch):
    mark = tmp_path / "ran"
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {mark}\ncat\n")
    program.chmod(0o755)
    home = write_project(
        tmp_path / "home",
        {
            ".gitconfig": f'[filter "x"]\n\tsmudge = {program}\n\trequired = true\n'
            f"[init]\n\ttemplateDir = {tmp_path / 'template'}\n"
        },
    )
    hook = tmp_path / "template" / "hooks" / "post-checkout"
    hook.parent.mkdir(parents=True)
    hook.write_text(f"#!/bin/sh\ntouch {mark}\n")
    hook.chmod(0o755)
    inner = write_project(tmp_path / "inner", {"a": "a"})
    _git(inner, "init", "-q")
    _git(inner, "add", ".")
    _git(inner, "commit", "-q", "-m", "one")
    _git(repository, "submodule", "--quiet", "add", str(inner), "verl")
    write_project(repository, {".gitattributes": "*.txt filter=x\n"})
    _git(repository, "add", ".")
    _git(repository, "commit", "-q", "-m", "three")
    monkeypatch.setenv("HOME", str(home))
    fetched = fetch.clone_repository(
        fetch.parse_revision_address(f"file://{repository}"), tmp_path / "clone"
    )
    assert not mark.exists()
    assert [note.text for note in fetched.not_read] == ["verl"]


def test_committed_files_are_not_written_through_links(tmp_path, repository):
    outside = tmp_path / "outside"
    outside.mkdir()
    content = _git(repository, "hash-object", "-w", "requirements.txt").strip()
    place = subprocess.run(
        ["git", "hash-object", "-w", "--stdin"], input=str(outside), text=True,
        cwd=repository, check=True, capture_output=True,
    ).stdout.strip()  # fmt: skip
    entries = {"file": f"100644 blob {content}\tfile", "link": f"120000 blob {place}\tlink"}
    for number, (name, inner) in enumerate(itertools.product(("a", ".."), entries.values())):
        lines = f"120000 blob {place}\ta\n100644 blob {content}\treadme\n"
        tree = _mktree(repository, f"{lines}040000 tree {_mktree(repository, inner)}\t{name}")
        commit = _git(repository, "commit-tree", "-m", "hostile", tree).strip()
        _git(repository, "update-ref", "refs/heads/hostile", commit)
        address = fetch.parse_revision_address(f"file://{repository}@hostile")
        fetched = fetch.clone_repository(address, tmp_path / f"clones{number}/clone")
        assert not list(outside.iterdir()), "the clone wrote outside of its folder"
        assert not (fetched.folder.parent / "file").exists()
        assert (fetched.folder / "readme").exists()


def _mktree(folder: Path, lines: str) -> str:
    done = subprocess.run(
        ["git", "mktree"], input=lines, text=True, cwd=folder, check=True, capture_output=True
    )
    return done.stdout.strip()


def test_failed_fetch_is_reported_with_git_message(tmp_path, repository):
    with pytest.raises(InputError, match="has no branch, tag or commit v9") as error:
        fetch.clone_repository(
            fetch.parse_revision_address(f"file://{repository}@v9"), tmp_path / "a"
        )
    assert error.value.hint == "specify a branch or tag of the repository, such as HEAD, main, v1"
    with pytest.raises(FetchFailed, match="git cannot access the repository"):
        fetch.clone_repository(
            fetch.parse_revision_address(f"file://{tmp_path}/absent@{'0' * 40}"), tmp_path / "c"
        )
    with pytest.raises(InputError, match="no folder gone"):
        fetch.clone_repository(
            fetch.parse_revision_address(f"file://{repository}#subdirectory=gone"), tmp_path / "b"
        )


# What the README of each public project declares: packages, CUDA, Python.
FACTS = {
    "grpo-zero": ({"torch==2.6.0", "tokenizers==0.21.1"}, set(), {"==3.11.*"}),
    "llama-factory": ({"trl<=0.24.0,>=0.18.0"}, {"12.4"}, {">=3.11.0"}),
    "ms-swift": ({"transformers<5.17.0,>=4.33", "trl<1.0,>=0.15"}, set(), set()),
    "nano-aha-moment": ({"vllm==0.8.5", "flash-attn==2.7.4.post1"}, set(), {">=3.10,<=3.12"}),
    "notebooks": ({"trl==0.22.2", "unsloth"}, set(), {"==3.13.*"}),
    "open-instruct": ({"wandb==0.23.1"}, {"12.8", "13.0"}, {"==3.12.*"}),
    "prime-rl": ({"transformers==5.6.2"}, {"12.8"}, {"~=3.12.0"}),
    "rl": ({"torch==2.11.0"}, {"13.0"}, {"==3.13.*", ">=3.13.14,<3.14"}),
    "search-r1": ({"vllm<=0.6.3", "tensordict<0.6", "flash-attn"}, set(), {">=3.8"}),
    "skyrl": ({"transformers<=5.8.0,>=5.6.1"}, set(), {"==3.12.*", ">=3.11"}),
    "understand-r1-zero": ({"pylatexenc==2.10"}, set(), {">=3.8"}),
    "unsloth": ({"typer>=0.12.0"}, set(), {">=3.9,<3.15"}),
    "verl-tool": ({"click==8.2.1"}, set(), {"==3.10.*", ">=3.10"}),
}


@pytest.mark.skipif(
    not PUBLIC.is_dir(), reason="no folder of public projects: set IMGBUILD_PROJECTS"
)
@pytest.mark.parametrize("name", FACTS)
def test_requirements_of_public_projects_are_read(name):
    packages, cuda, python = FACTS[name]
    result = read_declared(PUBLIC / name)
    assert packages <= {each.text for each in result.requirements}
    assert cuda <= {each.name for each in result.cuda}
    assert python <= {each.spec for each in result.python}
