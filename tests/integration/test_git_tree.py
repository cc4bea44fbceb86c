"""Tests archives of git repositories, including hostile repositories."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from imgbuild.cache.context import Context
from imgbuild.cache.store import Store
from imgbuild.errors import FetchFailed, InputError, IntegrityError
from imgbuild.http.client import HttpClient
from imgbuild.lock import addresses
from imgbuild.lock.addresses import GitAddress
from imgbuild.solve import git_tree
from imgbuild.wheel.sdist import read_members
from tests.support.git_repository import GitRepository, project_files
from tests.support.servers import FileSite, serve_site

EVIL = "#!/bin/sh\ntouch {mark}\n"


@pytest.fixture(name="context")
def _context(tmp_path: Path) -> Context:
    return Context(Store.open(tmp_path / "cache"), HttpClient(attempts=1))


@pytest.fixture(name="repository")
def _repository(tmp_path: Path) -> GitRepository:
    return GitRepository(tmp_path / "repository")


def address_of(text: str) -> GitAddress:
    address = addresses.parse_address(text)
    assert isinstance(address, GitAddress)
    return address


def fetch(text: str, context: Context) -> git_tree.GitTree:
    return git_tree.fetch_tree(git_tree.resolve_revision(address_of(text), context), context)


def content_of(tree: git_tree.GitTree, context: Context) -> dict[str, bytes]:
    path = context.store.file(tree.sha256)
    assert path is not None
    return {
        member.path: b"".join(content())
        for member, content in read_members(path, "archive")
        if member.kind == "file"
    }


def test_git_archive_depends_only_on_commit(repository, tmp_path):
    files = {"src/a.py": b"a\r\n" * 40_000, "src/run": "#!/bin/sh\n", **project_files()}
    commit = repository.commit(files)
    digests = set()
    for number in range(2):
        context = Context(Store.open(tmp_path / f"cache-{number}"), HttpClient())
        tree = fetch(f"{repository.url}@{commit}", context)
        path = context.store.file(tree.sha256)
        assert path is not None
        digests.add(hashlib.sha256(path.read_bytes()).hexdigest())
        assert len(path.read_bytes()) == tree.size
        assert tree.tree == repository.git("rev-parse", f"{commit}^{{tree}}")
        assert content_of(tree, context)["src/a.py"] == files["src/a.py"]
        repository.git("gc", "--quiet", "--prune=now")
    assert len(digests) == 1


def test_git_archive_bytes_match_golden_digest(repository, context):
    commit = repository.commit({"pyproject.toml": "", "demo.py": "print()\n"})
    tree = fetch(f"{repository.url}@{commit}", context)
    assert (commit, tree.sha256) == (
        "874cf1dce9562f6fabe4021688f0ced3e20feea2",
        "ace8c4d2766453b3dcf5192861a48c816e4919d377e90d1e615c4d33ce0b6dc4",
    )


@pytest.mark.parametrize("form", ["sha1", "sha256"])
def test_branches_tags_and_hashes_are_resolved_to_a_commit(form, tmp_path, context):
    repository = GitRepository(tmp_path / "repository", form=form)
    first = repository.commit(project_files(), tag="v1.0")
    second = repository.commit({"new.py": ""})
    repository.git("branch", "team/next", first)
    for rev, commit in (
        ("", second),
        ("@main", second),
        ("@v1.0", first),
        ("@team/next", first),
        ("@refs/tags/v1.0", first),
        (f"@{first}", first),
        (f"@{first[:9]}", first),
    ):
        if rev == f"@{first[:9]}" and form == "sha256":
            continue
        assert fetch(f"{repository.url}{rev}", context).commit == commit
    with pytest.raises(InputError, match="has no branch, tag or commit v2") as caught:
        fetch(f"{repository.url}@v2", context)
    assert "v1.0" in str(caught.value.hint)


def test_cached_commit_is_not_fetched_again(repository, context):
    commit = repository.commit(project_files())
    tree = fetch(f"{repository.url}@{commit}", context)
    repository.folder.rename(repository.folder.parent / "gone")
    assert fetch(f"{repository.url}@{commit}", context) == tree
    with pytest.raises(FetchFailed, match="git cannot access the repository"):
        fetch(f"{repository.url}@main", context)


def test_subfolder_includes_link_targets(repository, context):
    files = {
        "LICENSE": "free\n",
        "shared/data/a.txt": "a",
        "python/pyproject.toml": "",
        "other/b.py": "",
    }
    links = {"python/LICENSE": "../LICENSE", "python/data": "../shared/data"}
    commit = repository.commit(files, links=links)
    tree = fetch(f"{repository.url}@{commit}#subdirectory=python", context)
    assert content_of(tree, context) == {
        "pyproject.toml": b"",
        "LICENSE": b"free\n",
        "data/a.txt": b"a",
    }
    assert tree.tree == repository.git("rev-parse", f"{commit}:python")
    with pytest.raises(InputError, match="has no folder rust"):
        fetch(f"{repository.url}@{commit}#subdirectory=rust", context)


def test_links_outside_repository_are_excluded(repository, context):
    links = {
        "passwd": "/etc/passwd",
        "up": "../../secret",
        "self": "self",
        "git": ".git/config",
        "through": "dir/../../x",
    }
    tree = fetch(repository.url, context) if repository.commit({"a.py": ""}, links=links) else None
    assert tree is not None
    assert sorted(tree.left_out) == sorted(links)
    assert content_of(tree, context) == {"a.py": b""}


@pytest.mark.parametrize(
    "name", ["a\nb.py", "a\x1bb.py", "a\\b.py", b"a\xffb.py".decode("utf-8", "surrogateescape")]
)
def test_file_names_that_archives_cannot_contain_are_excluded(name, repository, context):
    Path(os.fsencode(repository.folder / name).decode("utf-8", "surrogateescape")).write_text("x")
    repository.commit({"a.py": ""})
    tree = fetch(repository.url, context)
    assert len(tree.left_out) == 1
    assert content_of(tree, context) == {"a.py": b""}


def test_configured_repository_commands_are_not_run(repository, context, tmp_path):
    mark = tmp_path / "mark"
    evil = tmp_path / "evil"
    evil.write_text(EVIL.format(mark=mark))
    evil.chmod(0o755)
    repository.commit({
        ".gitattributes": "* filter=evil diff=evil merge=evil export-subst\n*.bin filter=lfs\n",
        "a.txt": "$Format:%H$\n",
        "model.bin": "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n",
    })  # fmt: skip
    for key in (
        "filter.evil.smudge", "filter.evil.clean", "filter.evil.process", "core.fsmonitor",
        "core.sshCommand", "core.pager", "core.editor", "core.alternateRefsCommand",
        "uploadpack.packObjectsHook", "diff.external", "credential.helper", "gpg.program",
    ):  # fmt: skip
        repository.git("config", key, str(evil))
    for hook in ("post-checkout", "reference-transaction", "post-index-change", "pre-auto-gc"):
        place = repository.folder / ".git/hooks" / hook
        place.parent.mkdir(exist_ok=True)
        place.write_text(EVIL.format(mark=mark))
        place.chmod(0o755)
    tree = fetch(repository.url, context)
    assert content_of(tree, context)["a.txt"] == b"$Format:%H$\n"
    assert content_of(tree, context)["model.bin"].startswith(b"version https://git-lfs")
    assert not mark.exists()


def test_submodules_are_listed_but_not_fetched(repository, context, tmp_path):
    other = GitRepository(tmp_path / "other")
    other.commit({"b.py": ""})
    repository.git(
        "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(other.folder), "sub"
    )
    repository.commit({"a.py": ""})
    tree = fetch(repository.url, context)
    assert tree.submodules == ("sub",)
    assert set(content_of(tree, context)) == {"a.py", ".gitmodules"}


def test_repository_with_too_many_files_is_refused(repository, context, monkeypatch):
    monkeypatch.setattr(git_tree, "LARGEST", 1000)
    repository.commit({"big": b"x" * 1001})
    with pytest.raises(IntegrityError, match="1 files of 1001 bytes"):
        fetch(repository.url, context)


@pytest.fixture(name="site")
def _site() -> Iterator[FileSite]:
    with serve_site(FileSite(ranges=False)) as site:
        yield site


def test_repository_on_http_server_is_fetched(repository, context, site):
    first = repository.commit(project_files(), tag="v1.0")
    repository.commit({"new.py": ""})
    site.files.update(repository.dumb_files())
    text = f"git+{site.url('demo.git')}"
    assert fetch(f"{text}@v1.0", context).commit == first
    assert fetch(f"{text}@{first}", context).commit == first


def test_git_redirect_to_local_file_is_not_followed(repository, context, site):
    repository.commit(project_files())
    site.redirects["/demo.git/info/refs"] = f"file://{repository.folder}/.git/info/refs"
    repository.git("update-server-info")
    with pytest.raises(FetchFailed, match="git cannot access the repository"):
        fetch(f"git+{site.url('demo.git')}", context)


def test_git_does_not_prompt_for_missing_credentials(context, site):
    site.login = ("me", "secret")
    with pytest.raises(FetchFailed, match="git cannot access the repository") as caught:
        fetch(f"git+{site.url('demo.git')}", context)
    assert "git ls-remote" in str(caught.value.hint)
