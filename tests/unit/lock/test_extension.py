"""Tests that the lock of an extension keeps published parts and detects changes."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from imgbuild import codec
from imgbuild.assemble import skeleton
from imgbuild.assemble.inputs import Inputs
from imgbuild.cache.context import Context
from imgbuild.cache.store import Store
from imgbuild.errors import InputError, IntegrityError
from imgbuild.http.client import HttpClient
from imgbuild.lock import extension, lock_file, published
from imgbuild.lock.lock_file import AddedFolder, Lock
from imgbuild.lock.resolution import Wheel
from imgbuild.plan.plan import (
    AddedDebsRecipe,
    AddedFilesRecipe,
    FilesRecipe,
    WheelsRecipe,
    base_plan,
    create_plan,
)
from imgbuild.values import Arch, sha256
from tests.support import extended, render_sample, samples

REPOSITORY = Path(__file__).parents[3]
GOLDEN = """\
{
  "target": "small",
  "lock": "LOCK",
  "digest": "DIGEST",
  "packages": ["rsync"],
  "files": {
    "/opt/team/train.sh": {"file": "train.sh", "size": 24, "sha256": "SCRIPT", "mode": "0755"}
  },
  "links": {"/opt/team/start": "train.sh"},
  "arch": {
    "x86_64": {
      "manifest": "DIGEST",
      "wheels": ["einops", "wandb"],
      "debs": ["libpopt0", "rsync"]
    }
  }
}
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return extended.create_repository(tmp_path)


def extension_lock(path: Path, *more: Wheel) -> Lock:
    matrix = extended.read_extended(path)
    return extension.make_lock(
        matrix, extended.OWN_TARGET, extended.resolve_additions(matrix, *more)
    )


def test_added_packages_are_last_in_the_lock(path: Path) -> None:
    text = codec.encode(extension_lock(path)).decode()
    folder = path.parent / "published/small"
    expected = GOLDEN.replace("LOCK", sha256((folder / published.LOCK).read_bytes()))
    expected = expected.replace("SCRIPT", sha256(extended.SCRIPT))
    expected = expected.replace(
        "DIGEST", extended.published_target(extended.read_extended(path)).digest
    )
    document = json.loads(text)
    assert list(document)[-1] == "extends"
    assert document["extends"] == json.loads(expected)
    assert codec.decode(text.encode(), Lock, file="lock.json") == extension_lock(path)


def test_extending_row_overrides_published_settings(path: Path) -> None:
    lock, old = extension_lock(path), extended.published_lock()
    assert lock.settings.env == {**old.settings.env, "WANDB_MODE": "offline"}
    changed = {
        key: value
        for key, value in lock.settings.labels.items()
        if old.settings.labels.get(key) != value
    }
    assert changed == {
        "dev.imgbuild.as-of": "2025-07-01",
        "dev.imgbuild.extends": "small",
        "dev.imgbuild.target": "ours",
        "dev.imgbuild.version.wandb": "0.20.1",
        "org.example.team": "rl",
        "org.opencontainers.image.base.digest": extended.read_extended(path)
        .overlays[extended.OWN_TARGET]
        .published.digest,
        "org.opencontainers.image.title": "ours",
    }
    assert lock.requirements == {**old.requirements, "einops": ">=0.8", "wandb": "==0.20.1"}
    assert (lock.settings.entrypoint, lock.settings.cmd) == (
        old.settings.entrypoint,
        old.settings.cmd,
    )


def test_extending_row_overrides_the_published_command(path: Path) -> None:
    text = path.read_text(encoding="utf-8") + "    cmd: [/opt/team/train.sh]\n    entrypoint: []\n"
    path.write_text(text, encoding="utf-8")
    settings = extension_lock(path).settings
    assert (settings.entrypoint, settings.cmd) == ((), ("/opt/team/train.sh",))


def test_published_layers_of_an_extension_are_first_and_unchanged(path: Path) -> None:
    below = create_plan(extended.published_lock(), Arch.X86_64).layers
    layers = create_plan(extension_lock(path), Arch.X86_64).layers
    assert layers[: len(below)] == below, (
        "files dropped for an added package must not change layers"
    )
    added = layers[len(below) :]
    assert [layer.name for layer in added] == ["added-debs", "added-wandb", "added-group-1",
                                               "added-files"]  # fmt: skip
    debs, big, group, files = (layer.recipe for layer in added)
    assert isinstance(debs, AddedDebsRecipe)
    assert [deb.package for deb in debs.debs] == ["libpopt0", "rsync"]
    assert debs.base == below[0].recipe
    assert isinstance(big, WheelsRecipe)
    assert isinstance(group, WheelsRecipe)
    assert isinstance(files, AddedFilesRecipe)
    assert [wheel.package for wheel in (*big.wheels, *group.wheels)] == ["wandb", "einops"]
    assert isinstance(files.below, FilesRecipe)


def test_pip_constraints_of_the_image_include_added_packages(tmp_path: Path) -> None:
    below = samples.lock_with_tools(samples.wheel("numpy", "2.2.6", 5000))
    matrix = extended.read_extended(extended.create_repository(tmp_path, lock=below))
    lock = extension.make_lock(matrix, extended.OWN_TARGET, extended.resolve_additions(matrix))
    assert lock.extends is not None
    assert lock.extends.constraints is True
    (recipe,) = (
        layer.recipe
        for layer in create_plan(lock, Arch.X86_64).layers
        if isinstance(layer.recipe, AddedFilesRecipe)
    )
    members = skeleton.added_members(recipe, extension.added_contents(lock, matrix))
    (text,) = (each.content for each in members if each.path == "opt/imgbuild/constraints.txt")
    versions = lock.arch[Arch.X86_64].versions.items()
    lines = [f"{name}=={version}" for name, version in sorted(versions)]
    assert text == "".join(f"{line}\n" for line in lines if line[:5] != "pip==").encode()
    assert {"einops==0.8.1", "numpy==2.2.6", "wandb==0.20.1"} < set(lines)
    # Locks from before they existed keep their layers.
    older = msgspec.structs.replace(
        lock, extends=msgspec.structs.replace(lock.extends, constraints=msgspec.UNSET)
    )
    assert extension.extension_differences(older, matrix) == extension.extension_differences(
        lock, matrix
    )
    ids = [[layer.id for layer in create_plan(each, Arch.X86_64).layers] for each in (older, lock)]
    assert ids[0][:-1] == ids[1][:-1]
    assert ids[0][-1] != ids[1][-1]


def test_base_of_an_extension_includes_added_system_packages(path: Path) -> None:
    names = [
        layer.name for layer in base_plan(create_plan(extension_lock(path), Arch.X86_64)).layers
    ]
    assert names == ["debian-12", "added-debs"]


def test_added_system_packages_keep_the_published_tools(tmp_path: Path) -> None:
    """Layers, settings and README of the published image are kept."""
    below = samples.lock_with_tools(samples.wheel("numpy", "2.2.6", 5000))
    settings = msgspec.structs.replace(below.settings, readme="# small\n")
    below = msgspec.structs.replace(below, settings=settings)
    matrix = extended.read_extended(extended.create_repository(tmp_path, lock=below))
    lock = extension.make_lock(matrix, extended.OWN_TARGET, extended.resolve_additions(matrix))
    assert (lock.settings.user_packages, lock.settings.readme) == (True, "# small\n")
    published_layers = create_plan(below, Arch.X86_64).layers
    layers = create_plan(lock, Arch.X86_64).layers
    assert layers[: len(published_layers)] == published_layers
    (debs,) = (layer.recipe for layer in layers if layer.name == "added-debs")
    assert isinstance(debs, AddedDebsRecipe)
    assert [deb.package for deb in debs.debs] == ["libpopt0", "rsync"]
    assert [deb.package for deb in debs.base.debs] == ["bash", "htop", "libnl", "python3"]
    names = [layer.name for layer in base_plan(create_plan(lock, Arch.X86_64)).layers]
    assert names == ["debian-12", "tools", "added-debs"]
    assert extension.extension_differences(lock, matrix) == ()


def test_added_layers_can_exceed_the_published_layer_limit(path: Path) -> None:
    matrix = extended.read_extended(path)
    more = [samples.wheel(f"big-{number}", size=5000) for number in range(60)]
    lock = extension.make_lock(
        matrix, extended.OWN_TARGET, extended.resolve_additions(matrix, *more)
    )
    layers = create_plan(lock, Arch.X86_64).layers
    assert lock.layers.limit < len(layers) <= 120
    below = create_plan(extended.published_lock(), Arch.X86_64).layers
    assert layers[: len(below)] == below


@pytest.mark.parametrize(
    ("change", "moved"),
    [
        (lambda folder: (folder / "train.sh").write_bytes(b"other"), "added-files"),
        (
            lambda folder: (folder / "matrix.yaml").write_text(
                extended.MATRIX.replace('"0755"', '"0700"'), encoding="utf-8"
            ),
            "added-files",
        ),
    ],
)
def test_changed_addition_changes_only_its_layer(path: Path, change, moved: str) -> None:
    before = {
        layer.name: layer.id for layer in create_plan(extension_lock(path), Arch.X86_64).layers
    }
    change(path.parent)
    after = {
        layer.name: layer.id for layer in create_plan(extension_lock(path), Arch.X86_64).layers
    }
    assert {name for name in before if before[name] != after[name]} == {moved}


def test_lock_of_a_target_without_additions_has_no_extension_fields() -> None:
    assert b"extends" not in codec.encode(samples.lock())
    for file in sorted((REPOSITORY / "images").glob("*/lock.json")):
        lock = lock_file.read_lock(REPOSITORY / "images", file.parent.name)
        assert codec.encode(lock) == file.read_bytes()
        assert lock_file.published_lock(lock, next(iter(lock.arch))) is lock


# -- out of date


def test_new_extension_lock_is_current(path: Path) -> None:
    assert extension.extension_differences(extension_lock(path), extended.read_extended(path)) == ()


def test_recorded_base_folders_do_not_make_the_lock_stale(path: Path) -> None:
    lock = extension_lock(path)
    assert lock.extends is not None
    added = lock.extends.arch[Arch.X86_64]
    folders = {"/opt": AddedFolder(mode="0700")}
    arch = {Arch.X86_64: msgspec.structs.replace(added, folders=folders)}
    extends = msgspec.structs.replace(lock.extends, arch=arch)
    lock = msgspec.structs.replace(lock, extends=extends)
    assert extension.extension_differences(lock, extended.read_extended(path)) == ()


def test_changed_file_of_an_extension_makes_the_lock_stale(path: Path) -> None:
    lock = extension_lock(path)
    (path.parent / "train.sh").write_bytes(b"other")
    (result,) = extension.extension_differences(lock, extended.read_extended(path))
    assert result == (
        f"train.sh has changed: its sha256 is {sha256(b'other')}, but the lock has"
        f" {sha256(extended.SCRIPT)}"
    )
    (path.parent / "train.sh").unlink()
    (result,) = extension.extension_differences(lock, extended.read_extended(path))
    assert "train.sh: No such file or directory, but matrix.yaml adds it" in result


def test_change_of_the_published_target_is_reported(path: Path) -> None:
    lock = extension_lock(path)
    extended.publish_target(
        path.parent / "published/small", extended.published_lock(samples.wheel("new"))
    )
    (result,) = extension.extension_differences(lock, extended.read_extended(path))
    assert result.startswith("the lock extends small sha256:")
    assert str(path.parent / "published/small/lock.json") in result


def test_extension_lock_without_a_published_package_is_stale(path: Path) -> None:
    lock = extension_lock(path)
    resolution = lock.arch[Arch.X86_64]
    less = tuple(wheel for wheel in resolution.wheels if wheel.package != "numpy")
    changed = msgspec.structs.replace(resolution, wheels=less)
    broken = msgspec.structs.replace(lock, arch={Arch.X86_64: changed})
    assert "x86_64: numpy 2.2.6 of small is not locked" in extension.extension_differences(
        broken, extended.read_extended(path)
    )


def test_published_package_built_from_an_sdist_is_unchanged(tmp_path: Path) -> None:
    lock = extended.published_lock()
    old = msgspec.structs.replace(lock.arch[Arch.X86_64], built=(render_sample.BUILT,))
    lock = msgspec.structs.replace(lock, arch={Arch.X86_64: old})
    path = extended.create_repository(tmp_path, lock=lock)
    locked = extension_lock(path)
    assert locked.arch[Arch.X86_64].built == (render_sample.BUILT,)
    assert extension.extension_differences(locked, extended.read_extended(path)) == ()
    other = msgspec.structs.replace(render_sample.BUILT, env={})
    changed = msgspec.structs.replace(locked.arch[Arch.X86_64], built=(other,))
    locked = msgspec.structs.replace(locked, arch={Arch.X86_64: changed})
    (result,) = extension.extension_differences(locked, extended.read_extended(path))
    assert result == "x86_64: antlr4-python3-runtime 4.9.3 of small is not locked"


@pytest.mark.parametrize(
    ("old", "new", "result"),
    [
        ("[rsync]", "[rsync, jq]", "x86_64: Debian package jq is not locked"),
        ('"0.20.1"', '"0.21.0"', "x86_64: wandb 0.20.1 is locked, but wandb==0.21.0 is required"),
        ('"0755"', '"0700"', "extends.files./opt/team/train.sh.mode: the matrix has"),
        ("value: offline", "value: online", "settings.env.WANDB_MODE: the matrix has"),
    ],
)
def test_changed_row_of_an_extension_makes_the_lock_stale(
    path: Path, old: str, new: str, result: str
) -> None:
    lock = extension_lock(path)
    path.write_text(extended.MATRIX.replace(old, new), encoding="utf-8")
    reasons = extension.extension_differences(lock, extended.read_extended(path))
    assert any(reason.startswith(result) for reason in reasons), reasons


def test_extension_lock_is_stale_in_a_matrix_without_the_target(path: Path) -> None:
    reasons = extension.extension_differences(extension_lock(path), samples.matrix())
    assert reasons == ("the matrix has no target ours",)


# -- files


def test_added_files_are_stored_as_locked(path: Path, tmp_path: Path) -> None:
    lock, matrix = extension_lock(path), extended.read_extended(path)
    store = Store.open(tmp_path / "cache")
    inputs = Inputs(matrix, Context(store, HttpClient(offline=True)))
    inputs.fetch_missing(lock, {sha256(extended.SCRIPT)})
    stored = store.file(sha256(extended.SCRIPT))
    assert stored is not None
    assert stored.read_bytes() == extended.SCRIPT
    stored.unlink()
    (path.parent / "train.sh").write_bytes(b"other")
    with pytest.raises(IntegrityError, match=r"train\.sh has sha256") as caught:
        inputs.fetch_missing(lock, {sha256(extended.SCRIPT)})
    assert caught.value.hint == "imgbuild lock ours"


def test_missing_added_file_is_refused(path: Path) -> None:
    (path.parent / "train.sh").unlink()
    with pytest.raises(InputError, match=r"train\.sh: No such file or directory") as caught:
        extension_lock(path)
    assert caught.value.hint == "add the file, or remove it from `files`"


def test_sdist_build_can_require_a_published_or_added_package(tmp_path: Path) -> None:
    text = extended.MATRIX.replace(
        "targets:\n",
        "sdists:\n  deepspeed: {reason: only an sdist exists, requires: [torch, numpy, einops]}\n"
        "targets:\n",
        1,
    )
    matrix = extended.read_extended(extended.create_repository(tmp_path, text))
    assert matrix.sdists["deepspeed"].requires == ("torch", "numpy", "einops")
    assert {"torch", "numpy"} <= matrix.targets["ours"].pins.keys()  # the build gets these versions
    path = extended.create_repository(tmp_path, text.replace("torch, numpy", "troch, numpy"))
    with pytest.raises(InputError) as caught:
        extended.read_extended(path)
    (problem,) = caught.value.problems
    assert (problem.path, problem.value) == ("sdists.deepspeed.requires[0]", "troch")
    assert problem.nearest == "torch"
    assert problem.line == 7
