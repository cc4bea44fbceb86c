"""Tests that folders of a base keep their mode and owner when an extension adds files to them."""

from __future__ import annotations

import io
from pathlib import Path

import msgspec
import pytest

from imgbuild.assemble import folders, skeleton
from imgbuild.assemble.inputs import Inputs
from imgbuild.cache.context import Context
from imgbuild.cache.store import Store
from imgbuild.errors import InputError
from imgbuild.http.client import HttpClient
from imgbuild.lock import extension
from imgbuild.lock.lock_file import AddedFile, AddedFolder, Lock
from imgbuild.lock.published import ExtendedMatrix
from imgbuild.lock.resolution import RegistryLayer
from imgbuild.oci.layer import write_layer
from imgbuild.oci.merged import MergedTree
from imgbuild.oci.reader import TarReader, open_inflated
from imgbuild.oci.tar import LayerMember, MemberKind
from imgbuild.plan.plan import AddedFilesRecipe, create_plan
from imgbuild.values import Arch, sha256
from tests.support import extended, images
from tests.support.layer_files import layer_file

PRIVATE, OWNED = "/etc/ssl/private/team.pem", "/var/lib/agent/team/list"
BASE = (
    LayerMember(path="etc/ssl/private", kind=MemberKind.FOLDER, mode=0o700),
    LayerMember(path="var/lib/agent", kind=MemberKind.FOLDER, mode=0o750, uid=7, gid=50),
    LayerMember(path="var/local", kind=MemberKind.FOLDER, mode=0o2775, gid=50),
    LayerMember(path="var/run", kind=MemberKind.LINK, mode=0o777, target="/run"),
    LayerMember(path="srv", kind=MemberKind.FOLDER, mode=0o755),
    images.text_member("etc/passwd", "root:x:0:0::/root:/bin/sh\n"),
)


class Sample:
    """An extension of a target on a registry image, whose layers are in the cache."""

    def __init__(self, folder: Path) -> None:
        self.matrix: ExtendedMatrix = extended.read_extended(
            extended.create_repository(folder / "repository")
        )
        self.store = Store.open(folder / "cache")
        self.inputs = Inputs(self.matrix, Context(self.store, HttpClient(offline=True)))
        # Two layers, since a later one may change a folder of an earlier one.
        self.layers = [
            images.make_layer(folder / "blobs", each)
            for each in (
                [LayerMember(path="var/lib/agent", kind=MemberKind.FOLDER, mode=0o700), *BASE[2:]],
                BASE[:2],
            )
        ]
        for record, blob in self.layers:
            self.store.add_blob(blob, record.digest)

    def lock(self, *placed: str) -> Lock:
        extension_lock = extension.make_lock(
            self.matrix, extended.OWN_TARGET, extended.resolve_additions(self.matrix)
        )
        assert extension_lock.extends is not None
        base = msgspec.structs.replace(extension_lock.base, kind="registry", image="host/base")
        below = tuple(
            RegistryLayer(digest=record.digest, size=record.size, diff_id=record.diff_id)
            for record, _ in self.layers
        )
        resolution = msgspec.structs.replace(
            extension_lock.arch[Arch.X86_64], base_layers=below, debs=()
        )
        script = AddedFile(file="train.sh", size=len(extended.SCRIPT),
                           sha256=sha256(extended.SCRIPT), mode="0600")  # fmt: skip
        extends = msgspec.structs.replace(
            extension_lock.extends, files=dict.fromkeys(placed, script), links={}
        )
        return msgspec.structs.replace(
            extension_lock, base=base, arch={Arch.X86_64: resolution}, extends=extends
        )


@pytest.fixture
def sample(tmp_path: Path) -> Sample:
    return Sample(tmp_path)


def recipe(lock: Lock) -> AddedFilesRecipe:
    files_recipe = create_plan(lock, Arch.X86_64).layers[-1].recipe
    assert isinstance(files_recipe, AddedFilesRecipe)
    return files_recipe


def test_lock_records_folders_with_unusual_mode_or_owner(sample: Sample) -> None:
    lock = folders.complete_lock(sample.lock(PRIVATE, OWNED, "/srv/a", "/new/b"), sample.inputs)
    assert lock.extends is not None
    assert lock.extends.arch[Arch.X86_64].folders == {
        "/etc/ssl/private": AddedFolder(mode="0700"),
        "/var/lib/agent": AddedFolder(mode="0750", uid=7, gid=50),
    }


def test_base_layers_are_read_only_once(sample: Sample) -> None:
    first = folders.complete_lock(sample.lock(PRIVATE), sample.inputs)
    for record, _ in sample.layers:
        blob = sample.store.blob(record.digest)
        assert blob is not None
        blob.unlink()
    assert folders.complete_lock(sample.lock(PRIVATE), sample.inputs) == first


def test_image_folders_keep_mode_and_owner_of_base(sample: Sample) -> None:
    files_recipe = recipe(folders.complete_lock(sample.lock(PRIVATE, OWNED), sample.inputs))
    layer = io.BytesIO()
    write_layer(
        skeleton.added_members(files_recipe, dict.fromkeys(files_recipe.files, extended.SCRIPT)),
        layer,
    )
    (sample.store.root.parent / "own").write_bytes(layer.getvalue())
    tree = MergedTree()
    blobs = [sample.store.blob(record.digest) for record, _ in sample.layers]
    for blob in (*blobs, sample.store.root.parent / "own"):
        assert blob is not None
        with open_inflated(layer_file(blob)) as stream:
            tree.add(TarReader(stream, str(blob)))
    attributes = {path: (node.mode, node.uid, node.gid) for path, node in tree.iterate_paths()}
    assert attributes["/etc/ssl/private"] == (0o700, 0, 0)
    assert attributes["/var/lib/agent"] == (0o750, 7, 50)
    assert attributes["/var/lib/agent/team"] == (0o755, 0, 0)
    assert attributes[PRIVATE] == (0o600, 0, 0)


def test_layer_is_unchanged_if_all_folders_have_the_default_mode_and_owner(sample: Sample) -> None:
    before = sample.lock("/srv/a", "/opt/b/c")
    assert folders.complete_lock(before, sample.inputs) == before
    moved = folders.complete_lock(sample.lock(PRIVATE), sample.inputs)
    ids = [create_plan(each, Arch.X86_64).layers[-1].id for each in (sample.lock(PRIVATE), moved)]
    assert ids[0] != ids[1]


@pytest.mark.parametrize(
    ("place", "result"),
    [("/var/run/team/x", "/var/run is not a folder in the base image: symlink"),
     ("/etc/passwd/x", "/etc/passwd is not a folder in the base image: file"),
     ("/var/local/team/x", "/var/local is a setgid folder (mode "),
     ("/srv", "/srv is a folder in the base image"),
     ("/etc/ssl/private", "/etc/ssl/private is a folder in the base image"),
     # A parent folder that is not listed explicitly.
     ("/etc", "/etc is a folder in the base image")],
)  # fmt: skip
def test_file_below_a_path_that_is_not_a_folder_is_refused(
    sample: Sample, place: str, result: str
) -> None:
    with pytest.raises(InputError) as caught:
        folders.complete_lock(sample.lock("/srv/a", place), sample.inputs)
    assert result in caught.value.message
    assert f"targets.ours.files.{place} " in caught.value.message
    if result.endswith("is a folder in the base image"):
        assert caught.value.hint == f"write {place}/train.sh"


def test_link_that_replaces_a_folder_is_refused(sample: Sample) -> None:
    lock = sample.lock()
    assert lock.extends is not None
    extends = msgspec.structs.replace(lock.extends, links={"/srv": "/data/srv1"})
    with pytest.raises(InputError, match=r"targets\.ours\.links\./srv .* is a folder") as caught:
        folders.complete_lock(msgspec.structs.replace(lock, extends=extends), sample.inputs)
    assert caught.value.hint == "write /srv/srv1"


def test_file_can_replace_file_or_link(sample: Sample) -> None:
    lock = folders.complete_lock(sample.lock("/etc/passwd", "/var/run"), sample.inputs)
    assert lock.extends is not None
    assert lock.extends.arch[Arch.X86_64].folders == {}
