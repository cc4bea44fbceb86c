"""Tests the parts of a SIF: its container format and the files for Apptainer and enroot."""

from __future__ import annotations

import json
import shlex
import struct

import msgspec
import pytest

from imgbuild.cli import _sif as verb
from imgbuild.errors import InputError, IntegrityError, ToolMissing
from imgbuild.oci import documents, layout
from imgbuild.oci import image as oci_image
from imgbuild.oci.documents import Descriptor
from imgbuild.oci.merged import MergedTree
from imgbuild.oci.reader import TarReader
from imgbuild.sif import container, enroot, files, image, squashfs
from imgbuild.system import process
from imgbuild.values import Arch, digest_of, sha256
from tests.support.rows import each_row
from tests.unit.sif.test_flat import facts, info, members, merged

DIGEST = f"sha256:{'1' * 64}"
TIME = 1750377600


def summary(**settings: object) -> image.SifSource:
    """An image with the given settings, with names from the OCI image specification."""
    return image.SifSource(
        name="small",
        arch=Arch.X86_64,
        digest=DIGEST,
        settings=msgspec.convert(settings, image.RuntimeSettings),
        time=TIME,
        config=b"{}",
    )


# -- the container


def sif_file(tmp_path, objects):
    path = tmp_path / "x.sif"
    start = container.file_system_offset(objects)
    path.write_bytes(bytes(start) + b"hsqs" + bytes(8188))
    container.write_container(path, objects, Arch.ARM64, TIME)
    return path.read_bytes(), start


def test_sif_has_header_descriptors_and_objects(tmp_path):
    objects = [
        container.DataObject(kind=container.DEFINITION, data=b"from: x\n"),
        container.DataObject(kind=container.JSON, name="lock.json", data=b"{}" * 3000),
    ]
    data, start = sif_file(tmp_path, objects)
    assert data.startswith(b"#!/usr/bin/env run-singularity\n\0SIF_MAGIC\x0001\x0004\x00")
    created, modified, free, total, at, size, first, length = struct.unpack("<8q", data[64:128])
    assert data[48:64] == bytes(16)
    assert (created, modified, free, total, at) == (TIME, TIME, 45, 48, 4096)
    assert (first, at + size, first + length) == (4096 + 48 * 585, first, len(data))
    rows = [struct.unpack_from("<i?IIIqqqqqqq128s384s", data, at + 585 * n) for n in range(4)]
    descriptors = [
        (row[0], row[1], row[2], row[12].rstrip(b"\0"), data[row[5] : row[5] + row[6]])
        for row in rows[:2]
    ]
    assert descriptors == [
        (0x4001, True, 1, b"", b"from: x\n"),
        (0x4006, True, 2, b"lock.json", b"{}" * 3000),
    ]
    system = rows[2]
    assert (system[0], system[2], system[5], system[6]) == (0x4004, 3, start, 8192)
    assert system[13][:11] == struct.pack("<ii3s", 1, 2, b"04\0")
    assert start % 4096 == 0
    assert data[start : start + 4] == b"hsqs"
    assert sum(row[7] for row in rows[:3]) == length
    assert rows[3][:3] == (0, False, 0)


def test_sif_architecture_is_read(tmp_path):
    sif_file(tmp_path, [])
    assert container.read_arch(tmp_path / "x.sif") is Arch.ARM64
    for data in (b"", b"no SIF" * 99, (tmp_path / "x.sif").read_bytes().replace(b"04\0", b"05\0")):
        (tmp_path / "other").write_bytes(data)
        with pytest.raises(InputError, match="is not a SIF file for x86_64 or arm64"):
            container.read_arch(tmp_path / "other")
    with pytest.raises(InputError, match="No such file"):
        container.read_arch(tmp_path / "absent")


def test_small_objects_of_a_sif_are_read(tmp_path):
    objects = [
        container.DataObject(kind=container.DEFINITION, data=b"from: x\n"),
        container.DataObject(kind=container.JSON, name="oci-config.json", data=b"{}" * 3000),
    ]
    data, start = sif_file(tmp_path, objects)
    assert container.read_objects(tmp_path / "x.sif") == objects
    assert files.config_digest(tmp_path / "x.sif") == digest_of(objects[1].data)
    (tmp_path / "cut.sif").write_bytes(data[: start - 4096])
    with pytest.raises(InputError, match=r"cut\.sif is truncated"):
        container.read_objects(tmp_path / "cut.sif")
    sif_file(tmp_path, objects[:1])
    assert files.config_digest(tmp_path / "x.sif") is None


def test_sif_is_deterministic(tmp_path):
    (tmp_path / "other").mkdir()
    assert sif_file(tmp_path, []) == sif_file(tmp_path / "other", [])


# -- the image


def written(tmp_path, document):
    data = json.dumps(document).encode()
    digest = f"sha256:{sha256(data)}"
    blobs = tmp_path / "blobs/sha256"
    blobs.mkdir(parents=True)
    (blobs / digest[7:]).write_bytes(data)
    part = Descriptor("application/json", digest, len(data))
    stored = oci_image.PlatformImage(
        arch=Arch.X86_64, manifest=part, manifest_data=b"", config=part, config_data=data,
        configuration=documents.Configuration(architecture="amd64"), layers=(),
    )  # fmt: skip
    return layout.Layout(path=tmp_path, name="", top=part, images={Arch.X86_64: stored})


def test_image_of_another_builder_is_read(tmp_path):
    image_summary = image.read_sif_source(
        written(tmp_path, {"created": "2025-06-20T00:00:00.123456789Z", "config": {"Env": None}}),
        Arch.X86_64,
    )
    assert (image_summary.time, image_summary.environment, image_summary.command) == (
        TIME,
        {},
        ("/bin/sh",),
    )
    assert image_summary.name == "image"


def test_image_without_creation_time_is_an_error(tmp_path):
    with pytest.raises(IntegrityError, match="yesterday"):
        image.read_sif_source(written(tmp_path, {"created": "yesterday"}), Arch.X86_64)


# -- files for Apptainer


def test_environment_values_in_a_sif_are_quoted():
    odd = "a 'b' $(id) \"c\" `d` \\ *\nsecond line"
    text = files.environment_script(
        summary(Env=[f"ODD={odd}", "PATH=/a:/b", "EMPTY=", "not-a-name=1", "UID=1000"])
    )
    words = shlex.split(text, comments=True)
    assert words == ["export", f"ODD={odd}", "export", "PATH=/a:/b", "export", "EMPTY="]


def test_sif_hides_python_variables_of_the_caller():
    text = files.exclusion_script(summary(Env=["PYTHONPATH=/opt/mine", "PATH=/bin"]))
    assert "PYTHONPATH" not in text
    assert {"PYTHONHOME", "PYTHONSTARTUP", "PYTHONUSERBASE"} == {
        line.removeprefix("export ").rstrip("=")
        for line in text.splitlines()
        if line.startswith("export ")
    }


def test_sif_uses_the_home_folder_of_the_caller():
    """Apptainer mounts the caller's home, because the home of the image can be read-only."""
    assert "HOME" not in files.environment_script(summary(Env=["HOME=/root", "PATH=/bin"]))


@each_row(
    ("entrypoint", "command", "lines"),
    [
        (["/e", "an arg"], ["sh"], ['[ "$#" -gt 0 ] || set -- sh', "exec /e 'an arg' \"$@\""]),
        (["/e"], [], ['exec /e "$@"']),
        ([], ["ls", "-l"], ['[ "$#" -gt 0 ] || set -- ls -l', 'exec "$@"']),
        ([], [], ['[ "$#" -gt 0 ] || set -- /bin/sh', 'exec "$@"']),
    ],
)
def test_sif_runscript_runs_entry_point_and_command(entrypoint, command, lines):
    text = files.runscript_text(summary(Entrypoint=entrypoint, Cmd=command))
    assert text.splitlines() == ["#!/bin/sh", *lines]


def test_missing_mount_points_are_added_to_a_sif():
    below = members(
        (info("bin", b"2", linkname="usr/bin"), b""),
        (info("tmp", b"5", mode=0o1777), b""),
        (info("var/run", b"5"), b""),
        (info("etc/hosts"), b"mine"),
        (info("environment"), b"a file of the image's own"),
    )
    added = image.layer_archive(files.sif_members(summary(), merged(below)))
    names = [entry.path.rstrip("/") for entry in TarReader(_stream(added), "added")]
    assert len(names) == len(set(names))
    assert {"proc", "sys", "dev", "root", "home", "var/tmp", "etc/resolv.conf"} <= set(names)
    assert not {"tmp", "etc", "var", "etc/hosts", "environment"} & set(names)
    tree = facts(merged(below, added))
    assert tree["/singularity"][5] == ".singularity.d/runscript"
    assert tree["/.singularity.d/runscript"][1] == 0o755


def _stream(data):
    import io

    return io.BytesIO(data)


def test_sif_labels_have_the_digests_of_image_and_lock():
    small = summary(Labels={"title": "small"})
    assert files.sif_labels(small) == {"title": "small", "dev.imgbuild.image": DIGEST}
    locked = msgspec.structs.replace(small, lock=b"{}\n")
    assert files.sif_labels(locked)["dev.imgbuild.lock"] == f"sha256:{sha256(b'{}' + bytes([10]))}"
    objects = {each.name: each.data for each in files.sif_objects(locked)}
    assert objects["lock.json"] == b"{}\n"
    assert objects["oci-config.json"] == b"{}"
    metadata = json.loads(objects["inspect-metadata.json"])
    assert metadata["data"]["attributes"]["labels"] == files.sif_labels(locked)
    assert "lock.json" not in {each.name for each in files.sif_objects(small)}


# -- files for enroot


def test_sif_has_enroot_files_for_environment_mounts_and_start():
    small = summary(
        Env=["A=b c"], Entrypoint=["/e"], Cmd=["x y"], WorkingDir="/work/a", Volumes={"/data": {}}
    )
    enroot_members = {each.path: each for each in enroot.enroot_members(small, MergedTree())}
    assert enroot_members["etc/environment"].content == b"A=b c\n"
    assert enroot_members["etc/fstab"].content == (
        b"${ENROOT_ROOTFS}/data /data none x-create=dir,bind,rw,nosuid,nodev\n"
    )
    start = enroot_members["etc/rc"].content
    assert isinstance(start, bytes)
    assert start.endswith(b"  exec /e \"$@\"\nfi\nexec /e 'x y'\n")
    assert f"# dev.imgbuild.image {DIGEST}".encode() in start
    assert {"work", "work/a", "etc"} <= enroot_members.keys()
    assert "opt/imgbuild/lock.json" not in enroot_members


# -- mksquashfs


def answers(monkeypatch, text):
    monkeypatch.setattr(process, "find_program", lambda program, remedy: f"/usr/bin/{program}")
    monkeypatch.setattr(
        process, "run_command", lambda command, check: process.ProcessResult(1, text, "")
    )


@pytest.mark.parametrize("version", ["4.5.1 (2022/03/17)", "4.7-abc (2025)", "5.0"])
def test_mksquashfs_with_tar_support_is_accepted(monkeypatch, version):
    answers(monkeypatch, f"mksquashfs version {version}\n")
    assert squashfs.find_mksquashfs().version == version.split()[0]


@pytest.mark.parametrize("text", ["mksquashfs version 4.4 (2019/08/29)", "no version"])
def test_mksquashfs_before_4_5_is_refused_with_hint(monkeypatch, text):
    answers(monkeypatch, text)
    with pytest.raises(ToolMissing) as raised:
        squashfs.find_mksquashfs()
    assert "squashfs-tools 4.5" in str(raised.value.hint)


# -- the command


def test_sif_files_are_named_after_images(tmp_path):
    layout_path = tmp_path / "build/small"
    assert verb.file_path(layout_path, None, ".sif", several=False) == tmp_path / "build/small.sif"
    assert verb.file_path(layout_path, tmp_path / "x", ".sif", several=False) == tmp_path / "x"
    assert (
        verb.file_path(layout_path, tmp_path / "x", ".sqsh", several=True)
        == tmp_path / "x/small.sqsh"
    )
