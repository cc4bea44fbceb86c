"""Tests that hostile inputs are refused with little memory and an error with their name."""

from __future__ import annotations

import io
import json
import lzma
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from imgbuild import codec
from imgbuild.attest import attachments, bundle
from imgbuild.attest.sbom.packages import Package, SbomPackages
from imgbuild.deb import archive as debs
from imgbuild.errors import ControlSignal, ImgbuildError, InputError, IntegrityError
from imgbuild.lock import lock_file
from imgbuild.lock.lock_file import Lock
from imgbuild.oci import image, layout, reader
from imgbuild.oci.documents import Descriptor
from imgbuild.oci.merged import MergedTree
from imgbuild.oci.reader import TarReader, open_inflated
from imgbuild.oci.tar import padding_size
from imgbuild.sif import container, skim
from imgbuild.system import boundary
from imgbuild.values import Arch, Digest, Sha256, digest_of
from imgbuild.wheel import archive as wheel_archive
from imgbuild.wheel.record import read_record
from tests.support import debs as deb_files
from tests.support import hostile, images, samples, wheels
from tests.support.layer_files import layer_file, unpack_layer_files
from tests.support.rows import each_row


class Counting(io.BytesIO):
    """A stream that records the size of the largest read."""

    largest = 0

    def read(self, size: int | None = -1, /) -> bytes:
        requested = 1 << 62 if size is None or size < 0 else size
        self.largest = max(self.largest, requested)
        return super().read(size)


def header(kind: bytes, size: int, name: str = "a", **fields: object) -> bytes:
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, size
    for key, value in fields.items():
        setattr(info, key, value)
    return info.tobuf(tarfile.GNU_FORMAT)


def extended(text: bytes, kind: bytes = b"x") -> bytes:
    return header(kind, len(text)) + text + bytes(padding_size(len(text)))


def record(key: bytes, value: bytes) -> bytes:
    body = b" " + key + b"=" + value + b"\n"
    length = len(body)
    while len(str(length)) + len(body) != length:
        length = len(str(length)) + len(body)
    return str(length).encode() + body


FILE = header(b"0", 3, "file") + b"abc" + bytes(509)
END = bytes(1024)
REFUSED = {
    "negative PAX": (header(b"x", -512) + FILE, "an extended header of -512 bytes"),
    "negative GNU": (header(b"L", -1) + FILE, "an extended header of -1 bytes"),
    "negative size": (header(b"0", -5), "bad header"),
    "length of 5000 digits": (extended(b"9" * 5000 + b" a=b\n") + FILE, "PAX header is damaged"),
    "PAX size of 5000 digits": (extended(record(b"size", b"9" * 5000)) + FILE, "bad header"),
    "owner": (header(b"0", 0, uid=1 << 32), "the owner 4294967296:0"),
    "no owner": (header(b"0", 0, gid=(1 << 32) - 1), "the owner 0:4294967295"),
    "device": (header(b"3", 0, devmajor=1 << 33), "the device numbers"),
    "NUL in an attribute": (extended(record(b"SCHILY.xattr.a\0b", b"v")) + FILE, "bad header"),
    "no attribute": (extended(record(b"SCHILY.xattr.", b"v")) + FILE, "bad header"),
}  # fmt: skip


@each_row(("data", "text"), REFUSED.values(), ids=REFUSED)
def test_impossible_archive_members_are_refused_by_every_reader(tmp_path, data, text):
    path = tmp_path / "layer"
    path.write_bytes(hostile.gzip_bytes(data + END))
    for read in (
        lambda: unpack_layer_files([path], tmp_path / "root"),
        lambda: skim.layer_entries(layer_file(path)),
        lambda: merged(path),
    ):
        with pytest.raises(IntegrityError, match=text):
            read()


def merged(path: Path) -> MergedTree:
    tree = MergedTree()
    with open_inflated(layer_file(path)) as stream:
        tree.add(TarReader(stream, str(path)))
    return tree


def test_negative_member_size_in_a_layer_is_refused():
    stream = Counting(header(b"x", -512) + FILE + bytes(1 << 20))
    with pytest.raises(IntegrityError):
        list(TarReader(stream, "layer"))
    assert stream.largest <= 512


def test_extended_headers_in_a_layer_have_a_size_limit():
    def read(*sizes: int) -> list[str]:
        parts = [extended(record(b"comment", b"c" * size)) for size in sizes]
        stream = io.BytesIO(b"".join(parts) + FILE + END)
        return [entry.path for entry in TarReader(stream, "layer")]

    assert read(reader.HEADER_LIMIT - 100) == ["file"]
    for sizes in ([reader.HEADER_LIMIT], [reader.HEADER_LIMIT // 2] * 3):
        with pytest.raises(IntegrityError, match="layer: an extended header of"):
            read(*sizes)


def test_number_of_members_and_length_of_names_in_a_layer_are_limited(monkeypatch):
    monkeypatch.setattr(reader, "MEMBER_LIMIT", 3)
    assert len(list(TarReader(io.BytesIO(FILE * 3 + END), "layer"))) == 3
    with pytest.raises(IntegrityError, match="more than 3 members"):
        list(TarReader(io.BytesIO(FILE * 4 + END), "layer"))
    monkeypatch.setattr(reader, "NAMES_LIMIT", 11)
    with pytest.raises(IntegrityError, match="11 bytes of names"):
        list(TarReader(io.BytesIO(FILE * 3 + END), "layer"))


def test_number_of_members_in_an_image_archive_is_limited(monkeypatch, tmp_path):
    monkeypatch.setattr("imgbuild.oci.storage.MEMBER_LIMIT", 3)
    with tarfile.open(tmp_path / "image.tar", "w") as out:
        for name in "abcd":  # links and folders count, too
            info = tarfile.TarInfo(name)
            info.type = tarfile.SYMTYPE
            out.addfile(info)
    with pytest.raises(IntegrityError, match=r"image\.tar has more than 3 files"):
        image.read_image(tmp_path / "image.tar")


def test_tree_with_too_many_paths_is_refused(monkeypatch):
    monkeypatch.setattr("imgbuild.oci.merged.NODE_LIMIT", 50)
    deep = header(b"0", 0, "/".join("d" * 60))
    with pytest.raises(IntegrityError, match="exceeds the limit of 50 paths"):
        MergedTree().add(TarReader(io.BytesIO(deep + END), "layer"))


def test_layers_are_inflated_in_small_pieces(tmp_path):
    """Content in small gzip members cannot be skipped, so it is inflated."""
    path = tmp_path / "layer"
    path.write_bytes(hostile.gzip_bytes(header(b"0", 64 << 20, "zeros") + bytes(64 << 20) + END))
    largest = 0
    plain = skim._GzipTar._inflate_more

    def more(self: skim._GzipTar) -> bool:
        nonlocal largest
        has_more = plain(self)
        largest = max(largest, len(self._piece))
        return has_more

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(skim._GzipTar, "_inflate_more", more)
        assert [entry.size for entry in skim.layer_entries(layer_file(path))] == [64 << 20]
    assert largest <= skim.MOST


@pytest.mark.parametrize(
    ("line", "text"),
    [("a,sha256=x," + "9" * 5000, "invalid line"), ("a,sha256=x,٣", "invalid line")],
)
def test_sizes_in_a_record_file_must_be_numbers(line, text):
    with pytest.raises(IntegrityError, match=text):
        read_record(line, "demo.whl")


def test_version_of_5000_digits_is_refused(tmp_path):
    path = wheels.write_wheel(tmp_path, {}, name="demo", version="1")
    long = tmp_path / "other.whl"
    info = f"demo-{'9' * 200}.dist-info"
    data = {
        f"{info}/METADATA": wheels.minimal_metadata("demo", "9" * 5000),
        f"{info}/WHEEL": wheels.WHEEL,
        f"{info}/RECORD": b"",
    }
    assert wheel_archive.read_wheel(path).version == "1"
    wheels.write_wheel(tmp_path, data, name="demo", version="9" * 200).rename(long)
    with pytest.raises(IntegrityError, match=r"other\.whl cannot be read: ValueError"):
        wheel_archive.read_wheel(long)


def deb(tmp_path: Path, **parts: bytes) -> Path:
    named = {
        "debian-binary": b"2.0\n",
        "control.tar": deb_files.tar_bytes(
            [deb_files.file("./control", deb_files.control_text("demo").encode())]
        ),
        "data.tar": deb_files.tar_bytes([deb_files.file("./usr/a", b"content")]),
        **{name.replace("_", "."): data for name, data in parts.items()},
    }
    path = tmp_path / "demo.deb"
    path.write_bytes(deb_files.ar_bytes({name: data for name, data in named.items() if data}))
    return path


def sparse() -> bytes:
    data = header(b"S", 512, "./usr/a", mtime=0)
    size = b"%011o\0" % (1 << 32)
    entries = b"%011o\0%011o\0" % (0, 512)
    block = data[:386] + entries + bytes(72) + b"\0" + size + data[495:]
    blank = block[:148] + b" " * 8 + block[156:]
    return block[:148] + b"%06o\0 " % sum(blank) + block[156:] + bytes(512) + END


FAULTY = {
    "xz": {"control_tar_xz": b"\xfd7zXZ\0" + bytes(60), "control_tar": b""},
    "a package without a name": {
        "control_tar": deb_files.tar_bytes([deb_files.file("./control", b"Version: 1\n")])
    },
    "a line that is no field": {
        "control_tar": deb_files.tar_bytes([deb_files.file("./control", b"what\n")])
    },
    "a truncated stream": {
        "data_tar_xz": lzma.compress(os.urandom(9999))[:5000],
        "data_tar": b"",
    },
    "a sparse file": {"data_tar": sparse()},
}


@each_row("parts", FAULTY.values(), ids=FAULTY)
def test_damaged_debian_packages_are_refused(tmp_path, parts):
    path = deb(tmp_path, **parts)
    with pytest.raises(IntegrityError, match=r"demo\.deb") as caught:
        debs.read_deb(path, tmp_path / "spool", lambda *_: True)
    assert caught.value.hint
    assert not (tmp_path / "spool").exists() or (tmp_path / "spool").stat().st_size < 1 << 20


def test_debian_packages_have_size_limits(tmp_path, monkeypatch):
    data = deb_files.tar_bytes([deb_files.file("./zeros", bytes(3 << 20))])
    path = deb(tmp_path, data_tar_xz=lzma.compress(data), data_tar=b"")
    assert debs.read_deb(path, tmp_path / "spool", lambda *_: True).members
    monkeypatch.setattr(debs, "LEEWAY", 0)
    with pytest.raises(IntegrityError, match="unpacked size exceeds"):
        debs.read_deb(path, tmp_path / "spool", lambda *_: True)
    monkeypatch.setattr(debs, "CONTROL_LIMIT", 10)
    with pytest.raises(IntegrityError, match=r"control has .* bytes"):
        debs.read_control(deb(tmp_path))


def test_ar_member_with_a_declared_size_of_gigabytes_is_refused(tmp_path):
    path = deb(tmp_path)
    data = path.read_bytes()
    path.write_bytes(data[:56] + b"9999999999" + data[66:])  # the size of its first member
    with pytest.raises(IntegrityError, match=r"demo\.deb: "):
        debs.read_control(path)


def configured_layout(folder: Path, **config: object) -> Path:
    """A layout whose configuration has `config`."""
    blob = images.make_layer(folder / "blobs", [images.text_member("opt/hello", "hello\n")])
    summary = images.image_files([blob])
    document = json.loads(summary.config)
    document["config"] |= config
    data = json.dumps(document).encode()
    manifest = json.loads(summary.manifest)
    manifest["config"] |= {"digest": digest_of(data), "size": len(data)}
    changed = msgspec.structs.replace(summary, config=data, manifest=json.dumps(manifest).encode())
    layout.write_layout(folder / "image", {Arch.X86_64: changed}, "tiny")
    return folder / "image"


@each_row(
    ("config", "text"),
    [
        ({"Env": ["A=1", "PATH"]}, "'PATH' in Env"),
        ({"Env": ["=1"]}, "'=1' in Env"),
        ({"Env": ["A=\0"]}, r"'A=\\x00' in Env"),
        ({"Entrypoint": ["a\0b"]}, "in Entrypoint"),
        ({"Cmd": ["a\0b"]}, "in Cmd"),
        ({"WorkingDir": "/a\0b"}, "in WorkingDir"),
    ],
)
def test_impossible_image_configurations_are_refused(tmp_path, config, text):
    with pytest.raises(IntegrityError, match=text):
        configured_layout(tmp_path, **config)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Digest, "sha256:" + "0" * 64 + "\n"),
        (Sha256, "0" * 64 + "\n"),
    ],
)
def test_digest_with_trailing_characters_is_refused(kind, value):
    assert codec.decode(json.dumps(value[:-1]).encode(), kind, file="x") == value[:-1]
    with pytest.raises(InputError):
        codec.decode(json.dumps(value).encode(), kind, file="x")


def test_descriptor_sizes_have_a_limit():
    document = {"mediaType": "a", "digest": "sha256:" + "0" * 64, "size": 1 << 40}
    assert codec.decode(json.dumps(document).encode(), Descriptor, file="x").size == 1 << 40
    with pytest.raises(InputError, match="x is not a valid"):
        codec.decode(json.dumps(document | {"size": (1 << 40) + 1}).encode(), Descriptor, file="x")


@each_row(("place", "value"), [("groups", 0), ("groups", -1), ("limit", 0), ("own_from", -1)])
def test_locks_with_impossible_layers_are_refused(place, value):
    document = json.loads(codec.encode(samples.lock()))
    document["layers"][place] = value
    with pytest.raises(InputError, match=r"lock\.json is not a valid lock") as caught:
        codec.decode(json.dumps(document).encode(), Lock, file="lock.json", what="lock")
    assert f"layers.{place}" in str(caught.value.problems[0])


@each_row("mode", ["0o755", "999", "", "0755\n"])
def test_file_modes_in_a_lock_must_be_octal(mode):
    data = json.dumps({"mode": mode}).encode()
    with pytest.raises(InputError):
        codec.decode(data, lock_file.AddedFolder, file="lock.json")


PIPES: dict[str, Callable[[Path], object]] = {
    "lock": lambda pipe: codec.read_document(pipe, Lock),
    "wheel": wheel_archive.read_wheel,
    "package of Debian": debs.read_control,
    "layer": lambda pipe: unpack_layer_files([pipe], pipe.with_name("root")),
    "names of a layer": lambda pipe: skim.layer_entries(layer_file(pipe)),
    "archive": image.read_image,
    "SIF": container.read_objects,
}


@each_row("read", PIPES.values(), ids=PIPES)
def test_pipe_in_place_of_an_input_is_refused_without_blocking(tmp_path, read):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ImgbuildError, match="pipe"):
        read(tmp_path / "pipe")


@each_row("name", ["index.json", "oci-layout", "config", "layer"])
def test_pipe_in_a_layout_is_refused_without_blocking(tmp_path, name):
    out = configured_layout(tmp_path)
    stored = layout.read_layout(out).image(Arch.X86_64)
    blobs = {"config": stored.config, "layer": stored.layers[0]}
    path = layout.blob_path(out, blobs[name].digest) if name in blobs else out / name
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(ImgbuildError):
        layout.layout_source(out).read(blobs["layer"], lambda _: None)
    if name != "layer":
        assert not layout.has_complete_image(out, stored.manifest.digest)


def test_image_documents_have_a_size_limit(tmp_path, monkeypatch):
    (tmp_path / "long.json").write_bytes(b" " * 100)
    monkeypatch.setattr(codec, "LIMIT", 99)
    with pytest.raises(IntegrityError, match=r"long\.json has more than 99 bytes"):
        codec.read_document(tmp_path / "long.json", Lock)


def test_error_of_every_reader_names_the_file():
    @boundary.reads_untrusted("path")
    def read(path: str, fail: Exception) -> None:
        raise fail

    for failure in (KeyError("Package"), RecursionError(), MemoryError(), UnicodeError("x")):
        with pytest.raises(IntegrityError, match=r"^some\.deb cannot be read: ") as caught:
            read("some.deb", failure)
        assert caught.value.__cause__ is failure
    for passed in (InputError("mine"), ControlSignal(), OSError(28, "full"), KeyboardInterrupt()):
        with pytest.raises(type(passed)) as raised:
            read("some.deb", passed)  # type: ignore[arg-type]
        assert raised.value is passed


def test_pipe_in_place_of_a_lock_is_refused_without_blocking(tmp_path):
    (tmp_path / "small").mkdir()
    os.mkfifo(tmp_path / "small/lock.json")
    with pytest.raises(IntegrityError, match=r"small/lock\.json is not a regular file"):
        lock_file.read_lock(tmp_path, "small")


def test_lock_artifact_with_an_invalid_requirement_is_refused():
    lock_bundle = bundle.read_folder(Path(__file__).parents[2] / "images/cu124-vllm0.7.2")
    wheel = lock_bundle.lock.arch[Arch.X86_64].wheels[0]
    listed = Package(file=wheel.file, requires=(f"{wheel.package}; bar ==",))
    lying = msgspec.structs.replace(
        lock_bundle, packages=SbomPackages(packages={wheel.sha256: listed})
    )
    with pytest.raises(
        IntegrityError, match=r"package list of cu124-vllm0\.7\.2 cannot be read: Inv"
    ):
        attachments.sbom_files(lying, Arch.X86_64)
