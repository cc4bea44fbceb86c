"""Tests how the committed files of a folder are read from git, and how differences are reported."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from imgbuild.assemble import committed_files
from imgbuild.assemble.committed_files import CommittedFiles
from imgbuild.errors import InputError
from imgbuild.oci.layer import write_layer
from imgbuild.oci.tar import LayerMember
from tests.support.git_repository import GitRepository

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n"
EVIL = "#!/bin/sh\ntouch {mark}\ncat\n"


@pytest.fixture(name="repository")
def _repository(tmp_path: Path) -> GitRepository:
    return GitRepository(tmp_path / "repository")


def read(folder: Path, tmp_path: Path) -> tuple[CommittedFiles, tuple[str, ...], str]:
    """The committed files of `folder`, the local changes, and the digest of their layer."""
    contents = tmp_path / f"contents-{len(list(tmp_path.iterdir()))}"
    committed = committed_files.find_committed_folder(folder)
    files = committed_files.read_committed_files(committed, "/workspace", contents)
    digest = write_layer(files.members, None).digest
    return files, committed_files.find_differences(committed, files), digest


def by_path(files: CommittedFiles) -> dict[str, LayerMember]:
    return {member.path.removeprefix("workspace/"): member for member in files.members}


@pytest.mark.parametrize("form", ["sha1", "sha256"])
def test_files_read_from_git_match_the_checkout(tmp_path: Path, form: str) -> None:
    repository = GitRepository(tmp_path / "repository", form=form)
    files = {"a.py": "a\n", "empty": "", "in/run": "#!/bin/sh\n", ".gitignore": "out\n"}
    (repository.folder / "in").mkdir()
    (repository.folder / "in/run").touch(mode=0o755)
    repository.commit(files, links={"data": "/data", "in/up": "../a.py"})
    (repository.folder / "out").write_text("ignored")
    content, differences, _ = read(repository.folder, tmp_path)
    members = by_path(content)
    assert differences == ()
    assert (members["data"].target, members["in/up"].target) == ("/data", "../a.py")
    assert (members["in/run"].mode, members["a.py"].mode) == (0o755, 0o644)
    (repository.folder / "a.py").write_text("b\n")
    (repository.folder / "empty").unlink()
    (repository.folder / "data").unlink()
    (repository.folder / "data").symlink_to("/other")
    (repository.folder / "in/run").chmod(0o644)
    (repository.folder / "staged").write_text("")
    repository.git("add", "staged")
    assert read(repository.folder, tmp_path)[1] == ("a.py", "data", "empty", "in/run", "staged")


def test_filters_hooks_and_settings_of_a_repository_are_ignored(
    repository: GitRepository, tmp_path: Path
) -> None:
    repository.commit({"a.py": "a\n", "b.txt": "x\n", ".gitattributes": "*.py filter=evil\n"})
    digest = read(repository.folder, tmp_path)[2]
    evil, mark = tmp_path / "evil", tmp_path / "mark"
    evil.write_text(EVIL.format(mark=mark))
    evil.chmod(0o755)
    for name in ("filter.evil.clean", "filter.evil.smudge", "core.fsmonitor", "diff.external"):
        repository.git("config", name, str(evil))
    repository.git("config", "core.autocrlf", "true")
    (repository.folder / "b.txt").write_bytes(b"x\r\n")
    os.utime(repository.folder / "a.py", (1, 1))
    changed = repository.git("hash-object", "-w", "--stdin", data=b"other\n")
    repository.git("replace", repository.git("rev-parse", "HEAD:a.py"), changed)
    mark.unlink(missing_ok=True)  # git itself may have run it above
    content, differences, again = read(repository.folder, tmp_path)
    assert again == digest
    assert differences == ()
    assert not mark.exists()
    assert by_path(content)["a.py"].size == 2


def test_lfs_pointers_submodules_and_excluded_paths_are_listed(
    repository: GitRepository, tmp_path: Path
) -> None:
    repository.commit({"weights.bin": POINTER, "matrix.yaml": "", ".imgbuild/x": "", "a\\b": ""})
    head = repository.git("rev-parse", "HEAD")
    repository.git("update-index", "--add", "--cacheinfo", f"160000,{head},vendor")
    repository.git("commit", "--quiet", "--message", "submodule")
    (repository.folder / "weights.bin").write_bytes(b"\0" * 9)
    content, differences, _ = read(repository.folder, tmp_path)
    assert content.pointers == ("weights.bin",)
    assert content.submodules == ("vendor",)
    assert content.left_out == ("a\\b",)
    assert by_path(content).keys() == {"workspace", "weights.bin"}
    assert differences == ()


def test_only_the_requested_subfolder_of_a_repository_is_read(
    repository: GitRepository, tmp_path: Path
) -> None:
    repository.commit({"top.py": "", "part/a.py": "a\n"})
    content, differences, _ = read(repository.folder / "part", tmp_path)
    assert by_path(content).keys() == {"workspace", "a.py"}
    assert differences == ()


def test_folder_without_a_commit_is_refused(repository: GitRepository, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not in a readable git checkout"):
        committed_files.find_committed_folder(tmp_path)
    with pytest.raises(InputError, match="has no commit"):
        committed_files.find_committed_folder(repository.folder)
    repository.commit({"a.py": ""})
    (repository.folder / "new").mkdir()
    with pytest.raises(InputError, match="contains no file of"):
        committed_files.find_committed_folder(repository.folder / "new")
