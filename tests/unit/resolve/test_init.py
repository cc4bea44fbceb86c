"""Tests creating a matrix with `extends`, and the copy of the published target."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from imgbuild.cache.store import Store
from imgbuild.errors import (
    InputError,
    NothingSelected,
)
from imgbuild.http.client import HttpClient
from imgbuild.lock import published
from imgbuild.matrix import project_paths, schema
from imgbuild.matrix.load import load_matrix
from imgbuild.resolve import first_matrix, init
from imgbuild.resolve.first_matrix import WantedExtension
from imgbuild.resolve.resolve_request import RequestedPackage
from imgbuild.smoke import recording, reports
from imgbuild.values import Arch
from tests.support import extended, inprocess_project, samples, smoke_records
from tests.support.inprocess_project import TARGET, UNLOCKED
from tests.support.rows import each_row

GOLDEN = """\
# yaml-language-server: $schema=./.imgbuild/matrix.schema.json
#
# An image that extends a published one. `imgbuild lock` resolves the additions and locks the whole
# image; `imgbuild build` creates the added layers. All other layers stay as published.
version: 1

published:
  small:
    # Copies of lock.json and digests.json. To renew them, run: imgbuild init --refresh
    lock: published/small
    from: https://example.org/images/small
    image: registry.example.org/small   # the layers are copied from here by digest

targets:
  ours:
    extends: small
    summary: our image
    # Added packages must have been uploaded before this day. The default is 2025-06-20, as for
    # small, because packages of the same time are usually compatible.
    # as_of: 2025-06-20
    requires:
      einops: {spec: ">=0.8", reason: requested with imgbuild init}
      wandb: {reason: requested with imgbuild init}
    pins:
      einx: "0.3.0"
    packages: [rsync, jq]
    files:
      /opt/team/train.sh: {from: train.sh, mode: "0755"}
    # env:
    #   WANDB_MODE: {value: offline, reason: nodes have no network}
"""


def test_matrix_written_by_init_is_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    extended.publish_target(tmp_path / "published/small", extended.published_lock())
    (tmp_path / "train.sh").write_bytes(extended.SCRIPT)
    (tmp_path / "train.sh").chmod(0o755)
    requests = (
        RequestedPackage(package="einops", spec=">=0.8"),
        RequestedPackage(package="wandb"),
        RequestedPackage(package="einx", spec="==0.3.0"),
    )
    requested = WantedExtension(
        name="ours",
        packages=requests,
        system=("rsync", "jq"),
        files=init.parse_file_pairs(["train.sh:/opt/team/train.sh"]),
    )
    below = published.read_published_target(tmp_path / "published/small", "small")
    origin = "https://example.org/images/small"
    text = first_matrix.matrix_text(
        requested, below, "published/small", origin, "registry.example.org/small"
    )
    assert text == GOLDEN
    init.write_matrix(tmp_path / "matrix.yaml", text)
    assert extended.read_extended(tmp_path / "matrix.yaml").targets["ours"].pins["einx"] == "0.3.0"


@each_row(
    "name",
    ["null", "x: y.sh", "yes", "1.5", "a #b", "a:", "- x", "~", "2025-06-20", "é, {x}", "@x"],
)
def test_target_names_that_are_not_yaml_strings_are_quoted(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    extended.publish_target(tmp_path / "published/small", extended.published_lock())
    (tmp_path / name).write_bytes(extended.SCRIPT)
    files = init.parse_file_pairs([f"{name}:/opt/x"])
    below = published.read_published_target(tmp_path / "published/small", "small")
    text = first_matrix.matrix_text(
        WantedExtension(name="ours", summary=name, files=files), below, "published/small", name, ""
    )
    read = yaml.safe_load(text)
    assert read["published"]["small"]["from"] == name
    assert read["targets"]["ours"]["summary"] == name
    ((there, file),) = read["targets"]["ours"]["files"].items()
    assert (there, file["from"]) == ("/opt/x", name)
    init.write_matrix(tmp_path / "matrix.yaml", text)


def test_empty_sections_of_a_new_matrix_have_examples(tmp_path: Path) -> None:
    extended.publish_target(tmp_path / "published/small", extended.published_lock())
    below = published.read_published_target(tmp_path / "published/small", "small")
    text = first_matrix.matrix_text(
        WantedExtension(name="ours"), below, "published/small", "../project", ""
    )
    init.write_matrix(tmp_path / "matrix.yaml", text)
    # Each example is valid unchanged.
    taken = [line.replace("    # ", "    ", 1) for line in text.splitlines(keepends=True)]
    rows = "".join(taken[taken.index("    extends: small\n") :])
    rows = rows.replace("Added", "# Added").replace("small, because", "# small, because")
    assert set(yaml.safe_load(rows)) == {
        "extends", "summary", "as_of", "requires", "packages", "files", "env",
    }  # fmt: skip


def test_new_matrix_that_is_invalid_is_removed(tmp_path: Path) -> None:
    extended.publish_target(tmp_path / "published/small", extended.published_lock())
    below = published.read_published_target(tmp_path / "published/small", "small")
    requested = WantedExtension(
        name="ours", packages=(RequestedPackage(package="torch", spec="==2.7.0"),)
    )
    text = first_matrix.matrix_text(requested, below, "published/small", "../project", "")
    with pytest.raises(InputError) as caught:
        init.write_matrix(tmp_path / "matrix.yaml", text)
    assert "small has torch 2.6.0" in caught.value.problems[0].message
    assert caught.value.problems[0].file == "matrix.yaml (not written)"
    assert caught.value.message == "these options do not result in a valid matrix"
    assert not (tmp_path / "matrix.yaml").exists()


@pytest.mark.parametrize("place", ["images/small", "images", ""])
def test_published_target_is_found_and_copied(place: str, tmp_path: Path) -> None:
    extended.publish_target(tmp_path / "project/images/small", extended.published_lock())
    copy = tmp_path / "copy"
    below = init.copy_published_target(
        str(tmp_path / "project" / place), "small", copy, HttpClient()
    )
    assert below.name == "small"
    for name in (published.LOCK, published.DIGESTS_FILE):
        original = tmp_path / "project/images/small" / name
        assert (copy / name).read_bytes() == original.read_bytes()


def test_location_without_a_published_target_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no lock\.json and digests\.json of small"):
        init.copy_published_target(str(tmp_path), "small", tmp_path / "copy", HttpClient())


def test_init_does_not_replace_existing_files(tmp_path: Path) -> None:
    extended.publish_target(tmp_path / "project/images/small", extended.published_lock())
    path, place = tmp_path / "ours/matrix.yaml", str(tmp_path / "project")

    def _begin(*requests: RequestedPackage) -> None:
        requested = WantedExtension(name="ours", packages=requests)
        init.begin_matrix(
            path, requested, extends="small", place=place, image="", http=HttpClient()
        )

    with pytest.raises(InputError):
        _begin(RequestedPackage(package="torch", spec="==2.7.0"))
    assert not (tmp_path / "ours/.imgbuild").exists(), "a refused copy must leave no files"
    (tmp_path / "ours/.imgbuild/published/small").mkdir(parents=True)
    with pytest.raises(InputError, match=r"ours/\.imgbuild/published/small already exists"):
        _begin()
    (tmp_path / "ours/.imgbuild/published/small").rmdir()
    _begin()
    with pytest.raises(InputError, match=r"ours/matrix\.yaml already exists"):
        _begin()
    path.unlink()
    _begin()
    assert path.exists(), "the copy must be identical"


def test_unreadable_lock_does_not_replace_the_existing_copy(tmp_path: Path) -> None:
    path = extended.create_repository(tmp_path / "ours")
    before = (path.parent / "published/small/lock.json").read_bytes()
    extended.publish_target(tmp_path / "project", extended.published_lock())
    (tmp_path / "project/lock.json").write_bytes(before.replace(b'"small"', b'"other"'))
    with pytest.raises(InputError, match=r"project/lock\.json is the lock of other") as caught:
        init.refresh_targets(path, HttpClient())
    assert "another target or release" in (caught.value.hint or "")
    assert (path.parent / "published/small/lock.json").read_bytes() == before


def test_copy_of_a_published_lock_is_refreshed_from_its_source(tmp_path: Path) -> None:
    path = extended.create_repository(tmp_path / "ours")
    extended.publish_target(tmp_path / "project", extended.published_lock())
    (same,) = init.refresh_targets(path, HttpClient())
    assert same.before == same.after
    extended.publish_target(tmp_path / "project", extended.published_lock(samples.wheel("new")))
    (other,) = init.refresh_targets(path, HttpClient())
    assert (other.target, other.before) == ("small", same.after)
    assert (
        other.after
        == extended.published_target(extended.read_extended(path)).digest
        != other.before
    )
    path.write_text(extended.MATRIX.replace("    from: ../project\n", ""), encoding="utf-8")
    with pytest.raises(InputError, match=r"has no source \(`from`\)"):
        init.refresh_targets(path, HttpClient())


@each_row(
    ("word", "message"),
    [
        ("train.sh", "a colon and an absolute path"),
        ("train.sh:opt/train.sh", "a colon and an absolute path"),
        ("gone.sh:/opt/train.sh", r"no such file: gone\.sh"),
        ("../train.sh:/opt/train.sh", r"\.\./train\.sh is outside this folder"),
        ("/etc/passwd:/opt/passwd", "/etc/passwd is outside this folder"),
        ("linked.sh:/opt/train.sh", r"linked\.sh is outside this folder"),
    ],
)
def test_file_arguments_of_init_are_parsed(
    word: str, message: str, tmp_path: Path, monkeypatch
) -> None:
    folder = tmp_path / "ours"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / "train.sh").touch()
    (tmp_path / "train.sh").touch()
    (folder / "linked.sh").symlink_to("../train.sh")
    with pytest.raises(InputError, match=message):
        init.parse_file_pairs([word])


def test_files_are_named_by_their_path_below_the_current_folder(
    tmp_path: Path, monkeypatch
) -> None:
    (tmp_path / "ours/a").mkdir(parents=True)
    (tmp_path / "ours/a/train.sh").touch()
    monkeypatch.chdir(tmp_path / "ours")
    for here in (
        "a/train.sh",
        "./a//train.sh",
        f"{tmp_path}/ours/a/train.sh",
        "../ours/a/train.sh",
    ):
        copied_files = init.parse_file_pairs([f"{here}:/opt/train.sh"])
        assert [(str(path), there) for path, there in copied_files] == [
            ("a/train.sh", "/opt/train.sh")
        ]
    # A path through a link differs from its text.
    (tmp_path / "other/b").mkdir(parents=True)
    (tmp_path / "other/a").mkdir()
    (tmp_path / "other/a/train.sh").touch()
    (tmp_path / "ours/link").symlink_to("../other/b")
    with pytest.raises(InputError, match="is outside this folder"):
        init.parse_file_pairs(["link/../a/train.sh:/opt/train.sh"])


# -- from the catalogue


def test_target_of_the_catalogue_needs_no_location(tmp_path: Path) -> None:
    requested = WantedExtension(name="ours")
    below = init.begin_matrix(
        tmp_path / "matrix.yaml", requested, extends=TARGET, place=init.CATALOGUE_PLACE, image="",
        http=HttpClient(offline=True),
    )  # fmt: skip
    assert below.folder == tmp_path / ".imgbuild/published" / TARGET
    assert published.published_sources(tmp_path / "matrix.yaml")[TARGET].origin == "catalogue"
    (below.folder / "lock.json").unlink()
    (renewed,) = init.refresh_targets(tmp_path / "matrix.yaml", HttpClient(offline=True))
    assert renewed.before == renewed.after == below.digest
    with pytest.raises(NothingSelected) as caught:
        init.require_target(project_paths.catalogue_project(), f"{TARGET}m")
    assert f"did you mean {TARGET}? " in str(caught.value.hint)


def test_best_tested_target_is_recommended(tmp_path: Path) -> None:
    sample = inprocess_project.write_project(tmp_path)
    names, arch = {UNLOCKED: "", TARGET: ""}, Arch.X86_64
    inprocess_project.lock_target(
        tmp_path, load_matrix(sample.matrix), UNLOCKED, sample.wheels, [arch]
    )
    local_project = project_paths.find_project(tmp_path)
    assert (
        init.recommended_target(local_project, names, arch) == UNLOCKED
    )  # none is tested: the first one
    image_runs = reports.image_runs(smoke_records.answer_file(sample))
    recording.record_runs(local_project, image_runs, Store.open())
    assert init.recommended_target(local_project, names, arch) == TARGET
    assert init.recommended_target(local_project, {UNLOCKED: "verl", TARGET: ""}, arch) == UNLOCKED
    assert (
        init.recommended_target(local_project, {UNLOCKED: "verl", TARGET: "vllm"}, arch) == TARGET
    )
    with pytest.raises(NothingSelected, match="is locked for arm64"):
        init.recommended_target(local_project, names, Arch.ARM64)


def test_files_next_to_the_matrix_are_written_once(tmp_path: Path) -> None:
    inner = tmp_path / ".imgbuild"
    wrote = [inner / "matrix.schema.json", inner / ".gitignore"]
    assert init.write_editor_files(tmp_path) == wrote
    assert (inner / "matrix.schema.json").read_bytes() == schema.extension_schema_bytes()
    (inner / ".gitignore").write_text("/data/\n")
    assert init.write_editor_files(tmp_path) == []
    assert (inner / ".gitignore").read_text() == "/data/\n"
    assert [path.name for path in tmp_path.iterdir()] == [".imgbuild"]


# -- places outside of the repository


@pytest.mark.parametrize("lock", ["../other", "/tmp/other", "published/../../other"])
def test_copy_of_a_lock_outside_the_repository_is_refused(tmp_path: Path, lock: str) -> None:
    """Otherwise, `init --refresh` would write outside of the checkout."""
    extended.publish_target(tmp_path / "project/images/small", extended.published_lock())
    text = extended.MATRIX.replace("published/small", lock)
    path = extended.create_repository(tmp_path / "ours", text)
    with pytest.raises(InputError) as caught:
        init.refresh_targets(path, HttpClient(offline=True))
    (problem,) = caught.value.problems
    assert problem.path == "published.small.lock"
    assert lock in str(problem)
    assert not (tmp_path / "other").exists()
    with pytest.raises(InputError):
        published.load_matrix(path)


@pytest.mark.parametrize("part", ["published", "published/small", "published/small/lock.json"])
def test_copy_of_a_lock_is_not_written_through_a_link(tmp_path: Path, part: str) -> None:
    other = extended.published_lock(samples.wheel("new"))
    extended.publish_target(tmp_path / "project/images/small", other)
    path = extended.create_repository(tmp_path / "ours", extended.MATRIX)
    (path.parent / part).rename(tmp_path / "moved")
    (path.parent / part).symlink_to(tmp_path / "moved")
    before = {file: file.read_bytes() for file in tmp_path.rglob("*.json") if file.is_file()}
    with pytest.raises(InputError, match="it is a symbolic link"):
        init.refresh_targets(path, HttpClient(offline=True))
    assert {file: file.read_bytes() for file in before} == before


@each_row(
    ("folder", "name"),
    [("GRPO_Project 2", "grpo-project-2"), ("rl.team", "rl-team"), ("___", "my-image")],
)
@each_row("word", [".", "./", "absolute"])
def test_image_name_defaults_to_the_name_of_the_current_folder(
    folder: str, name: str, word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / folder).mkdir()
    monkeypatch.chdir(tmp_path / folder)
    assert init.target_name_for(str(Path.cwd()) if word == "absolute" else word) == name
    init.require_name(name)


@each_row("word", ["sub/rl", "..", "~/rl", "/nowhere/rl"])
def test_error_for_another_folder_suggests_commands(
    word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as caught:
        init.target_name_for(word)
    assert f"{word} is another folder" in caught.value.message
    assert "&& imgbuild init " in str(caught.value.hint)


def test_valid_image_name_is_used_unchanged() -> None:
    assert init.target_name_for("my-image.2") == "my-image.2"
    with pytest.raises(InputError, match="invalid name for an image: My Image"):
        init.target_name_for("My Image")
