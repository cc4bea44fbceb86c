"""Tests that the tar stream of several layers contains exactly their merged tree."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings

from imgbuild.errors import IntegrityError
from imgbuild.oci.merged import MergedTree, TreeNode
from imgbuild.oci.reader import TarReader
from imgbuild.oci.tar import END, LayerMember, MemberKind, member_header
from imgbuild.sif.flat import FlatTree, LayerSource
from imgbuild.values import sha256
from tests.support.layer_files import layer_file
from tests.unit.oci import test_merged as merging

Facts = tuple[object, ...]


def facts(tree: MergedTree) -> dict[str, Facts]:
    """Return the visible attributes of each path, and the first name of hard-linked files."""
    rows: dict[str, Facts] = {}
    first: dict[int, str] = {}
    for path, node in tree.iterate_paths():
        rows[path] = (*_node_facts(node), first.setdefault(id(node), path))
    return rows


def _node_facts(node: TreeNode) -> Facts:
    return (node.kind, node.mode, node.uid, node.gid, node.size, node.target, node.digest,
            node.device, node.mtime, node.attributes)  # fmt: skip


def merged(*layers: bytes) -> MergedTree:
    """Return the layers with their content, as `compare` reads them."""
    tree = MergedTree()
    for data in layers:
        tree.add(TarReader(io.BytesIO(data), "a layer"))
    return tree


def flat(*layers: bytes) -> bytes:
    flat_tar = FlatTree()
    flat_tar.add([LayerSource(data=data) for data in layers])
    return b"".join(flat_tar.chunks())


def members(*infos: tuple[tarfile.TarInfo, bytes]) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.PAX_FORMAT) as out:
        for info, content in infos:
            info.size = len(content)
            out.addfile(info, io.BytesIO(content))
    return data.getvalue()


def info(path: str, kind: bytes = tarfile.REGTYPE, **fields: object) -> tarfile.TarInfo:
    tar_info = tarfile.TarInfo(path)
    tar_info.type = kind
    for name, value in fields.items():
        setattr(tar_info, name, value)
    return tar_info


@given(merging.layers)
@settings(max_examples=80)
def test_flat_stream_matches_merged_layers(layers):
    given_ = [merging.layer(each) for each in layers]
    try:
        expected = merged(*given_)
    except IntegrityError:
        with pytest.raises(IntegrityError):
            flat(*given_)
        return
    assert facts(merged(flat(*given_))) == facts(expected)


@given(merging.layers)
def test_each_path_of_a_flat_stream_appears_once_after_its_folder(layers):
    try:
        stream = flat(*[merging.layer(each) for each in layers])
    except IntegrityError:
        return
    seen: list[str] = []
    for entry in TarReader(io.BytesIO(stream), "the stream"):
        path = entry.path.rstrip("/")
        assert path not in seen
        assert not path.startswith(("/", ".."))
        above = path.rpartition("/")[0]
        assert not above or above in seen
        if entry.type == tarfile.LNKTYPE:
            assert entry.target in seen
        seen.append(path)


def test_hard_link_to_a_removed_file_keeps_the_content():
    stream = flat(
        members((info("usr/data"), b"kept")),
        members((info("opt/name", tarfile.LNKTYPE, linkname="usr/data"), b"")),
        members((info("usr/.wh.data"), b"")),
    )
    rows = facts(merged(stream))
    assert "/usr/data" not in rows
    assert rows["/opt/name"][4] == len(b"kept")


def test_path_through_a_link_of_a_lower_layer_is_resolved():
    stream = flat(
        members((info("lib", tarfile.SYMTYPE, linkname="usr/lib"), b""), (info("usr/lib/a"), b"1")),
        members((info("lib/b"), b"2")),
    )
    rows = facts(merged(stream))
    assert rows["/lib"][0] == "symlink"
    assert {"/usr/lib/a", "/usr/lib/b"} <= rows.keys()


def test_devices_attributes_owners_and_unusual_names_are_kept():
    long = "/".join(["a folder with a long näme" * 4] * 4)
    odd = info("odd")
    odd.pax_headers = {"SCHILY.xattr.user.note": "wörd", "SCHILY.xattr.user.raw": "\udcff\x01"}
    given_ = members(
        (info(f"{long}/file", mode=0o4755, uid=70000, gid=1 << 22, mtime=5), b"deep"),
        (info("null", tarfile.CHRTYPE, devmajor=1, devminor=3, mode=0o666), b""),
        (info("disk", tarfile.BLKTYPE, devmajor=8, devminor=300), b""),
        (info("pipe", tarfile.FIFOTYPE, mode=0o600), b""),
        (info("same pipe", tarfile.LNKTYPE, linkname="pipe"), b""),
        (info("raw \udcff name"), b""),
        (odd, b"attributes"),
    )
    assert facts(merged(flat(given_))) == facts(merged(given_))
    assert facts(merged(given_))["/odd"][-2] == {"user.note": "wörd", "user.raw": "\udcff\x01"}


def test_unsupported_squashfs_attributes_are_reported():
    storable, other, lost = info("kept"), info("other"), info("lost", tarfile.DIRTYPE)
    storable.pax_headers = {
        "SCHILY.xattr.security.capability": "\x01",
        "SCHILY.xattr.system.posix_acl_access": "\x02",
    }
    lost.pax_headers = {"SCHILY.xattr.com.apple.provenance": "x"}
    other.pax_headers = {"SCHILY.xattr.system.posix_acl_access": "\x02"}
    given_ = members((storable, b""), (lost, b""), (other, b""))
    flat_tar = FlatTree()
    flat_tar.add([LayerSource(data=given_)])
    rows = facts(merged(b"".join(flat_tar.chunks())))
    assert [rows[path][-2] for path in ("/kept", "/lost", "/other")] == [
        {"security.capability": "\x01"}, None, None
    ]  # fmt: skip
    assert flat_tar.lost_attributes == {
        "system.posix_acl_access": "/kept",
        "com.apple.provenance": "/lost",
    }


def test_time_beyond_the_squashfs_limit_is_clamped():
    rows = facts(merged(flat(members((info("late", mtime=1 << 33), b"")))))
    assert rows["/late"][8] == (1 << 32) - 1


def test_flat_stream_depends_only_on_the_layers():
    layers = [members((info("a"), b"1"), (info("b", tarfile.LNKTYPE, linkname="a"), b""))] * 2
    assert flat(*layers) == flat(*layers)


def _stored(folder: Path, content: bytes) -> LayerSource:
    data = (
        member_header(LayerMember(path="file", size=len(content))) + content.ljust(512, b"\0") + END
    )
    path = folder / "layer"
    path.write_bytes(data)
    return LayerSource(
        path=path, digest=f"sha256:{sha256(data)}", size=len(data), diff_id=layer_file(path).diff_id
    )


def test_damaged_layer_of_a_flat_stream_is_an_error(tmp_path):
    layer = _stored(tmp_path, b"good")
    layer.path.write_bytes(layer.path.read_bytes().replace(b"good", b"evil"))
    with pytest.raises(IntegrityError, match=str(layer.path)):
        FlatTree().add([layer])
    layer.path.unlink()
    with pytest.raises(IntegrityError, match="No such file"):
        FlatTree().add([layer])


def test_layer_modified_between_reads_is_an_error(tmp_path):
    flat_tar = FlatTree()
    layer = _stored(tmp_path, b"good")
    flat_tar.add([layer])
    layer.path.write_bytes(member_header(LayerMember(path="x", kind=MemberKind.FOLDER)) + END)
    with pytest.raises(IntegrityError, match="changed"):
        list(flat_tar.chunks())


def test_size_and_progress_count_the_written_content():
    flat_tar = FlatTree()
    flat_tar.add([LayerSource(data=members((info("a"), b"12345"), (info("b"), b"1")))])
    flat_tar.add(
        [
            LayerSource(
                data=members((info("a"), b"123"), (info("c", tarfile.LNKTYPE, linkname="a"), b""))
            )
        ]
    )
    result: list[int] = []
    list(flat_tar.chunks(result.append))
    assert flat_tar.size == sum(result) == 4
    assert flat_tar.newest_time == 0
