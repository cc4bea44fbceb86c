"""Tests SIF and squashfs files of images with unusual layers."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from imgbuild import codec
from imgbuild.oci import documents, layout
from imgbuild.sif import convert, files, image
from imgbuild.values import Arch, sha256
from tests.support import needs, prepared_program, squashed
from tests.unit.sif.test_flat import info, members

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]
ARCH = Arch.X86_64
PREFIX = "/opt/venv"
LONG = "opt/" + "/".join(["a folder with a name of some length"] * 8)


@pytest.fixture(scope="module", autouse=True)
def _tools():
    for name in ("mksquashfs", "unsquashfs"):
        needs.require_tool(name, "squashfs-tools")


# -- an image with all features of layers


def odd_layers() -> list[bytes]:
    """Layers with whiteouts, opaque folders, links, devices, owners, modes and unusual names."""
    return [
        members(
            (info("usr/lib/a", mode=0o644, uid=7, gid=9), b"first"),
            (info("lib", tarfile.SYMTYPE, linkname="usr/lib"), b""),
            (info("opt/gone"), b"hidden"),
            (info("opt/full/1"), b"1"),
            (info("opt/full/2"), b"2"),
            (info("opt/was a folder/x"), b"x"),
            (info("opt/linked"), b"linked" * 50_000),
            (info("run/pipe", tarfile.FIFOTYPE, mode=0o620), b""),
            (info("dev/zero", tarfile.CHRTYPE, devmajor=1, devminor=5, mode=0o666), b""),
            (info("dev/disk", tarfile.BLKTYPE, devmajor=259, devminor=7, mode=0o640), b""),
            (info(f"{LONG}/file"), b"deep"),
            (info("opt/far", tarfile.SYMTYPE, linkname=f"/{LONG}/file"), b""),
            (info("opt/ödd", tarfile.SYMTYPE, linkname="/opt/ünïcode"), b""),
            (info("opt/up", tarfile.SYMTYPE, linkname="../../" + "x/" * 60), b""),
            (info("opt/of many", uid=1 << 22, gid=(1 << 31) + 7), b""),
        ),
        members(
            (info("lib/b", mode=0o755), b"through a link"),
            (info("opt/.wh.gone"), b""),
            (info("opt/full/.wh..wh..opq"), b""),
            (info("opt/full/3"), b"3"),
            (info("opt/.wh.was a folder"), b""),
            (info("opt/was a folder", tarfile.SYMTYPE, linkname="full"), b""),
            (info("opt/also linked", tarfile.LNKTYPE, linkname="opt/linked"), b""),
            (info("usr/bin/su", mode=0o4755, uid=0, gid=1), b"setuid"),
            (info("opt/ünïcode \\ and spaces"), b"name"),
            (info("opt/closed", tarfile.DIRTYPE, mode=0o700, uid=70000, gid=70001), b""),
        ),
        members(
            (info("opt/.wh.linked"), b""),
            (info("usr/lib/a", mode=0o600, mtime=1_700_000_000), b"last layer wins"),
        ),
    ]


def make_layout(folder: Path, layers: Sequence[bytes]) -> layout.Layout:
    """A layout of uncompressed and compressed layers, as created by other builders."""
    import gzip

    stored, ids = {}, []
    for number, data in enumerate(layers):
        packed = data if number % 2 else gzip.compress(data, mtime=0)
        digest = f"sha256:{sha256(packed)}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / digest[7:]).write_bytes(packed)
        stored[digest] = (folder / digest[7:], len(packed), number % 2)
        ids.append(f"sha256:{sha256(data)}")
    config = codec.encode_compact(
        {
            "architecture": "amd64",
            "os": "linux",
            "created": "2025-06-20T00:00:00Z",
            "config": {"Env": ["PATH=/bin"], "Cmd": ["sh"]},
            "rootfs": {"type": "layers", "diff_ids": ids},
        }
    )
    manifest = codec.encode_compact(
        {
            "schemaVersion": 2,
            "mediaType": documents.MANIFEST,
            "config": {"mediaType": documents.CONFIG, "digest": f"sha256:{sha256(config)}",
                       "size": len(config)},
            "layers": [
                {"mediaType": documents.LAYER if plain else documents.LAYER_GZIP,
                 "digest": digest, "size": size}
                for digest, (_, size, plain) in stored.items()
            ],
        }
    )  # fmt: skip
    summary = layout.ImageFiles(
        config=config,
        manifest=manifest,
        layers={digest: path for digest, (path, _, _) in stored.items()},
    )
    layout.write_layout(folder / "layout", {ARCH: summary}, "odd")
    return layout.read_layout(folder / "layout")


def check_tree(of: layout.Layout, path: Path, offset: int) -> set[str]:
    """Check that the squashfs has every path of the image unchanged. Returns all other paths."""
    expected, actual = (
        squashed.expected_entries(squashed.merged_tree(of, ARCH)),
        squashed.read_squashfs(path, offset),
    )
    differing = {name: (expected[name], actual.get(name)) for name in expected
                 if actual.get(name) != expected[name]}  # fmt: skip
    assert not differing
    return actual.keys() - expected.keys()


SIF = ("build", "--format", "sif")


@pytest.fixture(scope="module", name="odd")
def _odd(tmp_path_factory):
    return make_layout(tmp_path_factory.mktemp("odd"), odd_layers())


@pytest.mark.parametrize("compressor", ["zstd", "gzip"])
def test_sif_has_the_files_of_the_image(odd, tmp_path, compressor):
    out = tmp_path / "odd.sif"
    convert.convert_image(odd, ARCH, out, convert.ConvertOptions(compressor=compressor))
    beside = check_tree(odd, out, squashed.squashfs_offset(out))
    added = files.sif_members(image.read_sif_source(odd, ARCH), squashed.merged_tree(odd, ARCH))
    assert beside == {f"/{member.path}" for member in added}
    assert [path.name for path in tmp_path.iterdir()] == ["odd.sif"]


def test_squashfs_has_the_files_of_the_image(odd, tmp_path):
    out = tmp_path / "odd.sqsh"
    convert.convert_image(odd, ARCH, out, convert.ConvertOptions(format="squashfs"), lock=b"{}\n")
    assert check_tree(odd, out, 0) == {
        "/etc", "/etc/environment", "/etc/fstab", "/etc/rc", "/etc/rc.local", "/opt/imgbuild",
        "/opt/imgbuild/lock.json",
    }  # fmt: skip


def test_sif_keeps_extended_attributes(tmp_path):
    needs.require_root()
    header = info("bin/ping")
    header.pax_headers = {"SCHILY.xattr.user.note": "kept"}
    image_layout = make_layout(tmp_path / "image", [members((header, b"a program"))])
    convert.convert_image(
        image_layout, ARCH, tmp_path / "x.sqsh", convert.ConvertOptions(format="squashfs")
    )
    subprocess.run(
        [needs.require_tool("unsquashfs", "squashfs-tools"), "-quiet", "-no-progress", "-xattrs",
         "-dest", tmp_path / "root", tmp_path / "x.sqsh"],
        check=True, capture_output=True,
    )  # fmt: skip
    try:
        assert os.getxattr(tmp_path / "root/bin/ping", "user.note") == b"kept"
    except OSError as error:
        pytest.fail(f"{tmp_path} does not support extended attributes, or they were lost: {error}")


def test_unsupported_file_attributes_in_a_sif_are_reported_once(tmp_path):
    rows = []
    for number in range(2000):
        header = info(f"srv/{number}")
        header.pax_headers = {"SCHILY.xattr.system.posix_acl_access": "\x02\x01"}
        rows.append((header, b""))
    image_layout = make_layout(tmp_path / "image", [members(*rows)])
    words = (*SIF, "--from", str(image_layout.path), "--output", "x.sif")
    done = prepared_program.run_prepared(words, cwd=tmp_path, env=os.environ)
    assert done.returncode == 0, done.stderr
    messages = " ".join(done.stderr.split())
    assert messages.count("posix_acl_access") == 1
    assert "/srv/0 and others are written without it" in messages
    assert (
        len(
            squashed.read_squashfs(tmp_path / "x.sif", squashed.squashfs_offset(tmp_path / "x.sif"))
        )
        > 2000
    )


def test_bytes_of_a_sif_depend_only_on_the_image(odd, tmp_path):
    """The bytes do not depend on name, folder, umask, time zone or number of processes."""
    conversion = convert.convert_image(
        odd, ARCH, tmp_path / "odd.sif", convert.ConvertOptions(processors=2)
    )
    other = tmp_path / "another folder"
    shutil.copytree(odd.path, other / "layout")
    index = other / "layout/index.json"
    index.write_text(index.read_text().replace('"odd"', '"nightly"'))
    command = [
        sys.executable,
        "-m",
        "imgbuild",
        *SIF,
        "--from",
        "layout",
        "--output",
        "x.sif",
        "--json",
    ]
    done = subprocess.run(
        ["sh", "-c", 'umask 077; exec "$@"', "sh", *command, "--jobs", "1"],
        cwd=other,
        env={**os.environ, "TZ": "Pacific/Chatham", "LC_ALL": "C", "SOURCE_DATE_EPOCH": "1"},
        capture_output=True,
        check=True,
    )
    [answer] = json.loads(done.stdout)
    assert (answer["name"], conversion.name) == ("nightly", "odd")
    assert answer["digest"] == conversion.digest
    assert answer["image"] == odd.image(ARCH).manifest.digest
    assert (other / "x.sif").read_bytes() == conversion.output.read_bytes()


def test_sif_conversion_of_a_damaged_layer_leaves_no_output(odd, tmp_path):
    shutil.copytree(odd.path, tmp_path / "layout")
    layer = layout.read_layout(tmp_path / "layout").image(ARCH).layers[1]
    blob = tmp_path / "layout/blobs/sha256" / layer.digest[7:]
    blob.write_bytes(blob.read_bytes().replace(b"3", b"4"))
    (tmp_path / "x.sif").write_bytes(b"the old one")
    words = (*SIF, "--from", "layout", "--output", "x.sif")
    done = prepared_program.run_prepared(words, cwd=tmp_path, env=os.environ)
    assert done.returncode == 9
    assert layer.digest in done.stderr
    assert (tmp_path / "x.sif").read_bytes() == b"the old one"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["layout", "x.sif"]


def test_sif_conversion_removes_files_of_a_killed_conversion(odd, tmp_path):
    free, locked_file = (tmp_path / f".odd.sif.{name}.tmp" for name in (16 * "d", 16 * "b"))
    free.write_bytes(b"half a file")
    with locked_file.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        convert.convert_image(odd, ARCH, tmp_path / "odd.sif", convert.ConvertOptions())
    assert sorted(path.name for path in tmp_path.iterdir()) == [locked_file.name, "odd.sif"]


def test_interrupted_sif_conversion_leaves_no_output(odd, tmp_path):
    real = needs.require_tool("mksquashfs", "squashfs-tools")
    slow = tmp_path / "bin/mksquashfs"
    slow.parent.mkdir()
    slow.write_text(
        f'#!/bin/sh\n[ "$1" = -version ] && exec {real} -version\n'
        f'touch {tmp_path}/started\nsleep 2\nexec {real} "$@"\n'
    )
    slow.chmod(0o755)
    out = tmp_path / "out"
    with subprocess.Popen(
        [sys.executable, "-m", "imgbuild", *SIF, "--from", odd.path, "--output", out / "odd.sif"],
        env={**os.environ, "PATH": f"{slow.parent}:{os.environ['PATH']}"},
        stderr=subprocess.PIPE,
    ) as process:
        while not (tmp_path / "started").exists():
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        process.communicate()
    assert process.returncode == 130
    assert list(out.iterdir()) == []
