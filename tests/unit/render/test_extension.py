"""Tests that the Dockerfile of an extension has its system packages and files."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from imgbuild.errors import InputError, IntegrityError
from imgbuild.lock import extension
from imgbuild.lock.lock_file import Lock
from imgbuild.lock.published import ExtendedMatrix
from imgbuild.plan import image_digests
from imgbuild.plan.plan import base_plan, create_plan
from imgbuild.render import committed
from imgbuild.render.dockerfile import DockerfileModel, create_dockerfile
from imgbuild.values import Arch, digest_of
from tests.support import extended, samples


@pytest.fixture
def matrix(tmp_path: Path) -> ExtendedMatrix:
    lock = extended.published_lock(samples.wheel("uv", "0.7.13"))
    return extended.read_extended(extended.create_repository(tmp_path, lock=lock))


def locked(matrix: ExtendedMatrix) -> Lock:
    return extension.make_lock(matrix, extended.OWN_TARGET, extended.resolve_additions(matrix))


def rendered(matrix: ExtendedMatrix, lock: Lock) -> DockerfileModel:
    target_digests = image_digests.compute_digests(
        lock, extended.invented_records([create_plan(lock, Arch.X86_64)])
    )
    return create_dockerfile(lock, target_digests, matrix)


def test_rendered_extension_has_wheels_and_files_of_both_locks(matrix: ExtendedMatrix) -> None:
    lock = locked(matrix)
    rendering = rendered(matrix, lock)
    (stage,) = rendering.stages
    installed = [each for install in stage.installs for each in install.requirements]
    assert {"torch==2.6.0", "wandb==0.20.1", "einops==0.8.1"} <= set(installed)
    assert [(file.path, file.mode) for file in rendering.files.files if "team" in file.path] == [
        ("/opt/team/train.sh", "0755")
    ]
    assert [link.path for link in rendering.files.links] == ["/opt/team/start"]
    beside = committed.copied_files(lock, [Arch.X86_64], matrix)
    assert beside["files/opt/team/train.sh"] == extended.SCRIPT


def test_rendered_base_has_the_added_system_packages(matrix: ExtendedMatrix) -> None:
    lock = locked(matrix)
    planned = base_plan(create_plan(lock, Arch.X86_64))
    layer_records = extended.invented_records([create_plan(lock, Arch.X86_64)])
    manifest = image_digests.create_documents(planned, layer_records).manifest
    assert rendered(matrix, lock).base.digest == digest_of(manifest)
    assert len(planned.layers) == 2


@pytest.mark.parametrize("name", ["/etc/hostname", "../secret", "link"])
def test_lock_cannot_add_a_file_from_outside_the_repository(
    matrix: ExtendedMatrix, tmp_path: Path, name: str
) -> None:
    """The author of the lock may know the file's hash."""
    outside = tmp_path.parent / "secret"
    outside.write_bytes(extended.SCRIPT)
    (matrix.overlays[extended.OWN_TARGET].folder / "link").symlink_to(outside)
    lock = locked(matrix)
    assert lock.extends is not None
    files = {"/opt/x": next(iter(lock.extends.files.values()))}
    files = {path: msgspec.structs.replace(file, file=name) for path, file in files.items()}
    bad = msgspec.structs.replace(lock, extends=msgspec.structs.replace(lock.extends, files=files))
    with pytest.raises(InputError, match="outside the repository"):
        extension.added_contents(bad, matrix)


def test_binary_files_of_an_extension_cannot_be_rendered(matrix: ExtendedMatrix) -> None:
    (matrix.overlays[extended.OWN_TARGET].folder / "train.sh").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match=r"/opt/team/train\.sh is not UTF-8"):
        rendered(matrix, locked(matrix))


def test_render_refuses_a_changed_added_file(matrix: ExtendedMatrix) -> None:
    lock = locked(matrix)
    (matrix.overlays[extended.OWN_TARGET].folder / "train.sh").write_bytes(b"other")
    with pytest.raises(IntegrityError, match=r"train\.sh has sha256"):
        rendered(matrix, lock)
