from __future__ import annotations

import gzip
import io
import os
import stat
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from imgbuild.errors import InputError, IntegrityError
from imgbuild.oci.tar import LayerMember, MemberKind
from imgbuild.oci.tree import RootFolder
from imgbuild.oci.unpack import stack_layers, unpack_folders
from imgbuild.system.files import remove_tree
from tests.support import images
from tests.support.layer_files import layer_file, unpack_layer_files

ROOT = os.geteuid() == 0


def tar(path: Path, *entries: tuple[str, str, object], form: int = tarfile.PAX_FORMAT) -> Path:
    """Create a layer from (path, kind, content, target or mode) with Python's tarfile."""
    kinds = {
        "folder": tarfile.DIRTYPE,
        "link": tarfile.SYMTYPE,
        "hard": tarfile.LNKTYPE,
        "fifo": tarfile.FIFOTYPE,
    }
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=form) as out:
        for name, kind, value in entries:
            info = tarfile.TarInfo(name)
            content = b""
            if kind == "file":
                content = str(value).encode()
                info.size = len(content)
            else:
                info.type = kinds[kind]
                if isinstance(value, int):
                    info.mode = value
                else:
                    info.linkname = str(value)
            out.addfile(info, io.BytesIO(content))
    path.write_bytes(gzip.compress(data.getvalue(), mtime=0))
    return path


@pytest.fixture(name="root")
def _root(tmp_path: Path):
    yield tmp_path / "root"
    remove_tree(tmp_path / "root")


@pytest.fixture(name="layered", params=["unpacked", "stacked"])
def _layered(request: pytest.FixtureRequest, tmp_path: Path, root: Path) -> Callable[..., Path]:
    """Create a root folder from layers given as lists of entries."""

    def rooted(*layers: list[tuple[str, str, object]]) -> Path:
        blobs = [tar(tmp_path / f"{n}.gz", *entries) for n, entries in enumerate(layers)]
        if request.param == "unpacked":
            unpack_layer_files(blobs, root)
        else:
            folders = {layer_file(blob): tmp_path / f"kept-{blob.name}" for blob in blobs}
            unpack_folders(folders)
            stack_layers(list(folders.values()), root)
        return root

    return rooted


def test_written_layers_unpack_unchanged(tmp_path, root):
    deep = "/".join(f"folder{number:03}" for number in range(30))
    members = [
        images.text_member("bin/tool", "#!/bin/sh\n", mode=0o755),
        images.text_member("bin/su", "x", mode=0o4755),
        images.text_member("etc/shadow", "secret", mode=0o640),
        images.text_member("empty", ""),
        images.text_member(f"{deep}/ünï", "long path"),
        images.text_member("big", "0123456789" * 400_000),
        LayerMember(path="locked", kind=MemberKind.FOLDER, mode=0o555),
        images.text_member("locked/inside", "y"),
        LayerMember(path="link", kind=MemberKind.LINK, target="bin/tool"),
        LayerMember(path="away", kind=MemberKind.LINK, target="/etc/passwd"),
        LayerMember(path="same", kind=MemberKind.HARD, target="bin/tool"),
        LayerMember(path="tmp", kind=MemberKind.FOLDER, mode=0o1777),
        images.text_member("owned", "z"),
    ]
    _, blob = images.make_layer(tmp_path, members)
    unpack_layer_files([blob], root)
    for member in members:
        path = root / member.path
        file_status = path.lstat()
        if member.kind is MemberKind.LINK:
            assert str(path.readlink()) == member.target
            continue
        if member.kind is MemberKind.HARD:
            assert path.samefile(root / member.target)
            continue
        assert stat.S_IMODE(file_status.st_mode) == member.mode
        assert int(file_status.st_mtime) == member.mtime
        if isinstance(member.content, bytes):
            assert path.read_bytes() == member.content
        if ROOT:
            assert (file_status.st_uid, file_status.st_gid) == (member.uid, member.gid)


@pytest.mark.skipif(not ROOT, reason="only root can give files to other users")
def test_file_owners_are_kept_if_root_unpacks(tmp_path, root):
    member = LayerMember(path="mine", uid=1234, gid=70_000_000, size=1, content=b"x", mode=0o4750)
    _, blob = images.make_layer(tmp_path, [member])
    unpack_layer_files([blob], root)
    file_status = (root / "mine").stat()
    assert (file_status.st_uid, file_status.st_gid) == (1234, 70_000_000)
    assert (
        stat.S_IMODE(file_status.st_mode) == 0o4750
    )  # the change of owner comes first: it drops setuid


def test_unpacked_modes_do_not_depend_on_the_umask(tmp_path, root):
    _, blob = images.make_layer(tmp_path, [images.text_member("a/b/c", "x", mode=0o666)])
    before = os.umask(0o077)
    try:
        unpack_layer_files([blob], root)
    finally:
        os.umask(before)
    modes = [stat.S_IMODE((root / path).stat().st_mode) for path in ("", "a", "a/b", "a/b/c")]
    assert modes == [0o755, 0o755, 0o755, 0o666]


def test_upper_layers_override_lower_layers(layered):
    root = layered(
        [("a", "file", "old"), ("b", "folder", 0o755), ("b/x", "file", "x"), ("c", "link", "a")],
        [("a", "folder", 0o700), ("b", "file", "now a file"), ("c", "file", "now a file")],
    )
    assert (root / "a").is_dir()
    assert stat.S_IMODE((root / "a").stat().st_mode) == 0o700
    assert (root / "b").read_text() == "now a file"
    assert not (root / "c").is_symlink()


def test_folder_in_an_upper_layer_keeps_files_of_lower_layers(layered):
    root = layered([("d/x", "file", "x")], [("d", "folder", 0o711)])
    assert (root / "d/x").read_text() == "x"
    assert stat.S_IMODE((root / "d").stat().st_mode) == 0o711


def test_whiteouts_remove_paths_of_lower_layers(layered):
    root = layered(
        [("d/x", "file", "x"), ("d/y", "file", "y"), ("e/deep/z", "file", "z"), ("l", "link", "d")],
        [
            ("d/.wh.x", "file", ""),
            (".wh.e", "file", ""),
            (".wh.l", "file", ""),
            (".wh.absent", "file", ""),
            ("none/.wh.x", "file", ""),
            (".wh..wh.plnk", "folder", 0o755),
        ],
    )
    assert sorted(path.name for path in root.rglob("*")) == ["d", "y"]


def test_opaque_folders_hide_only_lower_layers(layered):
    root = layered(
        [("d/old", "file", "x"), ("d/deep/old", "file", "x")],
        [("d/new", "file", "n"), ("d/.wh..wh..opq", "file", ""), ("d/later", "file", "l")],
    )
    assert sorted(path.name for path in (root / "d").iterdir()) == ["later", "new"]


def test_parent_links_are_followed_inside_the_root(layered, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    root = layered(
        [
            ("lib", "link", "usr/lib"),
            ("usr/lib", "folder", 0o755),
            ("lib/one", "file", "1"),
            ("out", "link", str(outside)),
            ("out/two", "file", "2"),
            ("up", "link", "../../../../../.."),
            ("up/three", "file", "3"),
        ]
    )
    assert list(outside.iterdir()) == []
    assert (root / "usr/lib/one").read_text() == "1"
    assert (root / str(outside).lstrip("/") / "two").read_text() == "2"
    assert (root / "three").read_text() == "3"


def test_unpacked_file_is_not_written_through_a_link(layered, tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    root = layered([("file", "link", str(victim))], [("file", "file", "new")])
    assert victim.read_text() == "untouched"
    assert (root / "file").read_text() == "new"


def test_mode_is_not_set_through_a_link(layered, tmp_path):
    victim = tmp_path / "victim"
    victim.mkdir(mode=0o700)
    layered([("d", "folder", 0o777)], [("d", "link", str(victim))])
    assert stat.S_IMODE(victim.stat().st_mode) == 0o700


def test_whiteouts_outside_the_root_are_refused(layered, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x")
    layered([("out", "link", str(outside))], [("out/.wh.precious", "file", "")])
    assert (outside / "precious").exists()


@pytest.mark.parametrize("path", ["../x", "a/../../x", "/../x", ".wh..."])
def test_paths_outside_the_root_are_refused(layered, tmp_path, path):
    with pytest.raises(IntegrityError, match="points outside the image"):
        layered([(path, "file", "x")])
    assert not (tmp_path / "x").exists()


def test_absolute_paths_are_relative_to_the_root(layered):
    assert (layered([("/etc/x", "file", "x")]) / "etc/x").read_text() == "x"


@pytest.mark.parametrize("target", ["../secret", "{folder}/secret"])
def test_hard_links_outside_the_root_are_refused(layered, tmp_path, target):
    (tmp_path / "secret").write_text("x")
    with pytest.raises(IntegrityError):
        layered([("stolen", "hard", target.format(folder=tmp_path))])


def test_link_loops_are_refused(layered):
    with pytest.raises(IntegrityError, match="too many levels"):
        layered([("a", "link", "b"), ("b", "link", "a"), ("a/x", "file", "x")])


def test_file_in_place_of_a_parent_folder_is_refused(layered):
    with pytest.raises(IntegrityError, match="which is a file"):
        layered([("a", "file", "x")], [("a/b", "file", "x")])


def test_named_pipes_of_layers_are_created(layered):
    assert stat.S_ISFIFO((layered([("pipe", "fifo", 0o600)]) / "pipe").stat().st_mode)


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_member_names_are_read_in_gnu_and_pax_format(tmp_path, root, form):
    name = "/".join(["folder" * 10] * 6)
    entries = [(name, "file", "x"), ("link", "link", name), ("hard", "hard", name)]
    unpack_layer_files([tar(tmp_path / "blob", *entries, form=form)], root)
    assert (root / name).read_text() == (root / "link").read_text() == "x"
    assert (root / "hard").samefile(root / name)


def test_uncompressed_tar_layer_is_unpacked(tmp_path, root):
    blob = tar(tmp_path / "blob", ("a", "file", "x"))
    blob.write_bytes(gzip.decompress(blob.read_bytes()))
    unpack_layer_files([blob], root)
    assert (root / "a").read_text() == "x"


def test_layer_with_zstd_compression_is_refused_with_a_hint(tmp_path, root):
    (tmp_path / "blob").write_bytes(b"\x28\xb5\x2f\xfd" + bytes(100))
    with pytest.raises(InputError, match="zstd"):
        unpack_layer_files([tmp_path / "blob"], root)


@pytest.mark.parametrize(
    "harm",
    [
        lambda data: data[: len(data) // 2],
        lambda data: data[:-4],
        lambda data: data[:40] + bytes([data[40] ^ 0xFF]) + data[41:],
        lambda data: gzip.compress(gzip.decompress(data)[:700]),
        lambda data: gzip.compress(b"junk" * 500),
        lambda data: gzip.compress(gzip.decompress(data).replace(b"ustar", b"vstar")),
        lambda data: b"\x1f\x8b" + bytes(50),
    ],
    ids=["half", "no trailer", "flipped byte", "short tar", "no tar", "bad sum", "bad gzip"],
)
def test_damaged_layers_are_not_unpacked(tmp_path, root, harm):
    _, blob = images.make_layer(
        tmp_path, [images.text_member("a", "x" * 3000), images.text_member("b", "y")]
    )
    blob.write_bytes(harm(blob.read_bytes()))
    with pytest.raises(IntegrityError):
        unpack_layer_files([blob], root)


def test_sparse_files_are_refused(tmp_path, root):
    info = tarfile.TarInfo("sparse")
    info.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.PAX_FORMAT) as out:
        out.addfile(info)
    (tmp_path / "blob").write_bytes(data.getvalue())
    with pytest.raises(IntegrityError, match="sparse"):
        unpack_layer_files([tmp_path / "blob"], root)


def test_layers_are_not_unpacked_into_a_folder_with_files(tmp_path, root):
    root.mkdir()
    (root / "thesis.txt").write_text("years of work")
    with pytest.raises(InputError, match="is not empty"):
        unpack_layer_files([], root)


def test_removal_deletes_read_only_folders_but_not_link_targets(tmp_path):
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("x")
    root = tmp_path / "tree"
    (root / "locked/deep").mkdir(parents=True)
    (root / "locked/deep/file").write_text("x")
    (root / "link").symlink_to(precious)
    (root / "locked/deep").chmod(0o500)
    (root / "locked").chmod(0o000)
    remove_tree(root)
    assert not root.exists()
    assert (precious / "file").exists()
    remove_tree(root)


def test_root_folder_resolves_links_inside_the_root(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "abs").symlink_to("/real")
    (tmp_path / "up").symlink_to("../../real")
    with RootFolder(tmp_path) as tree:
        assert tree.place(("abs", "x")) == tree.place(("up", "x")) == ("real", "x")
        assert tree.place(("abs", "new", "..x")) == ("real", "new", "..x")
    assert (tmp_path / "real/new").is_dir()
