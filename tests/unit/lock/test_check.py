"""Tests that texts of untrusted locks pass the checks of a matrix in every reader."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from imgbuild import codec
from imgbuild.errors import InputError
from imgbuild.http.client import HttpClient
from imgbuild.lock import lock_file
from imgbuild.lock.lock_file import Lock
from imgbuild.resolve import first_matrix, init
from tests.support import extended, render_sample
from tests.support.rows import each_row

ROOT = Path(__file__).parents[3]
ZERO = "0" * 40
HOSTILE = "x\ntargets:\n  evil: '\"$(id)`id`\x1b]0;\x07\u202e%setup {{ x }}"


def texts(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The paths of all texts in a JSON document, keys of mappings included (as "KEY?")."""
    match value:
        case str():
            yield path
        case dict():
            for key, item in value.items():
                yield from texts(item, (*path, key))
        case list():
            for number, item in enumerate(value[:1]):
                yield from texts(item, (*path, number))


def replaced(document: Any, path: tuple[str | int, ...], text: str) -> Any:
    """A copy of the document with another text."""
    copy = json.loads(json.dumps(document))
    place = copy
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = text
    return copy


def decoded(document: Any) -> Lock:
    data = json.dumps(document).encode()
    return lock_file.decode_lock(data, "there/lock.json", hint="no", remedy="no")


def sample() -> Any:
    """A lock document with every possible field."""
    document = json.loads(codec.encode(render_sample.lock()))
    document["arch"]["x86_64"]["security"] = "2025-06-20"
    document["arch"]["x86_64"]["base_layers"] = [
        {"digest": f"sha256:{'1' * 64}", "size": 1, "diff_id": f"sha256:{'2' * 64}",
         "media_type": "application/vnd.oci.image.layer.v1.tar+gzip"}
    ]  # fmt: skip
    document["extends"] = {
        "target": "small", "lock": "0" * 64, "digest": f"sha256:{'0' * 64}", "packages": ["rsync"],
        "files": {"/opt/team/a": {"file": "a.sh", "size": 1, "sha256": "0" * 64, "mode": "0755"}},
        "links": {"/opt/team/b": "a"},
        "arch": {"x86_64": {"manifest": f"sha256:{'0' * 64}", "wheels": ["trl"], "debs": ["rsync"],
                            "folders": {"var/local": {"mode": "0755"}}}},
    }  # fmt: skip
    document["project"] = {
        "files": ["requirements.txt"], "requirements": ["demo @ git+https://git.example/demo"],
        "sources": {"demo": f"git+https://git.example/demo@{'0' * 40}#subdirectory=python",
                    "other": "https://files.example/other-1.0-py3-none-any.whl"},
        "trees": {"demo": "0" * 40},
    }  # fmt: skip
    return document


DOCUMENT = sample()
# Text of the base image's own accounts, which may have several lines.
LINES = ("base_files",)


@each_row("path", [p for p in texts(DOCUMENT) if not set(LINES) & set(p)], ids=str)
def test_control_characters_in_a_lock_are_refused(path: tuple[str | int, ...]) -> None:
    decoded(DOCUMENT)
    with pytest.raises(InputError) as caught:
        decoded(replaced(DOCUMENT, path, HOSTILE))
    (problem, *_) = caught.value.problems
    assert problem.file == "there/lock.json"
    named = f"{problem.path} {problem.message}"
    assert str(path[0]) in named
    assert str(path[-1]) in named or isinstance(path[-1], int)


MAPPINGS = (
    ("requirements",), ("indexes",), ("settings", "env"), ("settings", "labels"),
    ("settings", "links"), ("extends", "files"), ("extends", "links"),
    ("arch", "x86_64", "base_files"), ("extends", "arch", "x86_64", "folders"),
    ("arch", "x86_64", "built", 0, "env"), ("project", "sources"), ("project", "trees"),
)  # fmt: skip


@each_row("path", MAPPINGS, ids=str)
@each_row("key", ["a\nb", "$(id)", "a b", "../x", 'a"', "\x1b", ""])
def test_invalid_keys_in_a_lock_are_refused(path: tuple[str | int, ...], key: str) -> None:
    document = json.loads(json.dumps(DOCUMENT))
    place = document
    for part in path:
        place = place[part]
    values = list(place.values()) or ["pypi"]
    place[key] = values[0]
    with pytest.raises(InputError) as caught:
        decoded(document)
    assert caught.value.problems[0].value == key


@each_row(
    ("path", "text", "message"),
    [
        (("as_of",), "2025-02-30", "no such day"),
        (("as_of",), "2025-06-20\n", "expected format"),
        (("settings", "cache"), "/", "expected format"),
        (("settings", "cache"), "cache", "expected format"),
        (("settings", "cache"), "/a/../b", "expected format"),
        (("settings", "cache"), "/c:/usr,/x", "expected format"),
        (("settings", "workdir"), "/work dir", "expected format"),
        (("settings", "user", "home"), "/home/../etc", "not normal"),
        (("settings", "user", "name"), "root\n", "expected format"),
        (("settings", "env", "LD_LIBRARY_PATH"), "/x", "would hide the driver"),
        (("settings", "env", "IMGBUILD_FLASHINFER"), "prebuilt", "is inconsistent with the rest"),
        (("settings", "env", "PATH"), "/tmp:/usr/bin", "commands of the environment are not first"),
        (("settings", "env", "VIRTUAL_ENV"), "/tmp", "not the environment of the image"),
        (("settings", "labels", "dev.imgbuild.target"), "other", "is inconsistent with the rest"),
        (("settings", "labels", "dev.imgbuild.gpu"), "9.0; x", "expected format"),
        (("settings", "links", "/opt/venv/x"), "a/../../b", "not normal"),
        (("settings", "entrypoint", 0), "sh", "expected format"),
        (("drop", 0, "paths", 0), "../../etc/*", "not a path in the package"),
        (("extends", "files", "/opt/team/a", "file"), "../.env", "outside the repository"),
        (("extends", "files", "/opt/team/a", "file"), "/etc/shadow", "outside the repository"),
        (("extends", "links", "/tmp/x"), "a", "not a plain folder of the image"),
        (("arch", "x86_64", "wheels", 0, "file"), "../../x.whl", "expected format"),
        (("arch", "x86_64", "wheels", 0, "file"), "a.whl", "expected format"),
        (("arch", "x86_64", "wheels", 0, "version"), "0.5 --index-url x", "expected format"),
        (("arch", "x86_64", "built", 0, "sdist", "file"), "a/b.tar.gz", "expected format"),
        (("arch", "x86_64", "debs", 0, "file"), "pool/../../x.deb", "expected format"),
        (("project", "trees", "demo"), "main", "not a git hash"),
        (
            ("project", "sources", "demo"),
            "git+https://git.example/demo@main",
            "is not a commit",
        ),
        (
            ("project", "sources", "demo"),
            "git+https://me:word@git.example/demo@" + ZERO,
            "username or password",
        ),
        (
            ("project", "sources", "demo"),
            "git+ext::sh -c id@" + ZERO,
            "not the URL of a repository",
        ),
        (
            ("project", "sources", "demo"),
            "git+http://git.example/demo@" + ZERO,
            "use git+https",
        ),
        (
            ("project", "sources", "demo"),
            "git+https://git.example/demo@" + ZERO + "#subdirectory=../x",
            "outside the project",
        ),
        (("project", "sources", "other"), "file:///etc/passwd.whl", "not a URL scheme for wheels"),
        (("project", "sources", "other"), "../x-1.0-py3-none-any.whl", "outside the project"),
        (("project", "sources", "other"), "/x-1.0-py3-none-any.whl", "outside the project"),
        (
            ("project", "sources", "other"),
            "https://files.example/x.whl?X-Amz-Signature=1",
            "contains a secret",
        ),
    ],
)  # fmt: skip
def test_values_that_a_matrix_cannot_contain_are_refused_in_a_lock(
    path: tuple[str | int, ...], text: str, message: str
) -> None:
    with pytest.raises(InputError) as caught:
        decoded(replaced(DOCUMENT, path, text))
    assert caught.value.message == "there/lock.json is not a valid lock"
    problem = caught.value.problems[0]
    assert message in problem.message
    assert problem.path == ".".join(map(str, path)) or "[" in (problem.path or "")
    assert problem.value == text or str(path[-1]) in str(problem.path)


@each_row("end", ["1e999", "1" * 5000, '"\\ud800"', "[" * 5000, "{", '"\xff"'])
def test_lock_content_after_invalid_text_is_still_checked(end: str) -> None:
    """The whole document is searched, although the decoder has read only a part of it."""
    data = f'{{"format": 1, "target": "A", "more": {end}}}'.encode("latin-1")
    with pytest.raises(InputError, match=r"there/lock\.json is not a valid lock"):
        lock_file.decode_lock(data, "there/lock.json", hint="no", remedy="no")


def test_committed_locks_are_written_back_unchanged() -> None:
    lock_paths = sorted(ROOT.glob("images/*/lock.json"))
    assert len(lock_paths) > 20
    for path in lock_paths:
        data = path.read_bytes()
        assert codec.encode(lock_file.decode_lock(data, str(path), hint="", remedy="")) == data


@pytest.mark.parametrize("field", ["as_of", "target"])
def test_hostile_lock_cannot_inject_keys_into_the_matrix(field: str, tmp_path: Path) -> None:
    """`init --lock` writes values of the lock to matrix.yaml."""
    extended.publish_target(tmp_path / "server/small", extended.published_lock())
    path = tmp_path / "server/small/lock.json"
    document = json.loads(path.read_bytes())
    document[field] += "\n    files: {/opt/env: {from: .env}}\n    env: {LD_PRELOAD: {value: x}}"
    path.write_text(json.dumps(document))
    requested = first_matrix.WantedExtension(name="ours")
    with pytest.raises(InputError):
        init.begin_matrix(
            tmp_path / "matrix.yaml", requested, extends="small", place=str(tmp_path / "server"),
            image="", http=HttpClient(offline=True),
        )  # fmt: skip
    assert not (tmp_path / "matrix.yaml").exists()


def test_values_of_a_hostile_lock_are_quoted_or_refused_in_documents(tmp_path: Path) -> None:
    """This second safeguard is tested without the check of types."""
    extended.publish_target(tmp_path / "small", extended.published_lock())
    below = init.copy_published_target(
        str(tmp_path / "small"), "small", tmp_path / "copy", HttpClient(offline=True)
    )
    for text in (HOSTILE, "2025-06-20\n    files: {/a: {from: .env}}", "a: b", "&a", "\x85x", "🙂"):
        lock = msgspec.structs.replace(below.lock, as_of=text)
        hostile = msgspec.structs.replace(below, lock=lock, name=text)
        try:
            matrix_text = first_matrix.matrix_text(
                first_matrix.WantedExtension(name="ours", summary=text), hostile, text, text, text
            )
        except InputError:
            continue
        read = yaml.safe_load(matrix_text)
        assert list(read) == ["version", "published", "targets"]
        assert read["published"] == {text: {"lock": text, "from": text, "image": text}}
        assert read["targets"] == {"ours": {"extends": text, "summary": text}}


def test_sample_lock_has_every_lock_field() -> None:
    assert DOCUMENT.keys() == set(Lock.__struct_fields__)
