"""Tests all readers of untrusted bytes with changed bytes. `make bench-hostile` runs longer."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import tarfile
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from imgbuild import codec
from imgbuild.attest import bundle
from imgbuild.attest.sbom import packages
from imgbuild.attest.signing.forms import Bundle
from imgbuild.attest.signing.statements import Envelope
from imgbuild.audit.packages import sdist_code
from imgbuild.audit.packages.content import LocalContent
from imgbuild.audit.packages.reading import find_modules, read_elf_facts, read_index, read_modules
from imgbuild.deb import archive as debs
from imgbuild.deb.closure import DebianArchive, resolve_dependencies
from imgbuild.deb.control import parse_paragraphs
from imgbuild.http.client import TextPage
from imgbuild.index import pages
from imgbuild.lock import lock_file
from imgbuild.matrix import load as matrices
from imgbuild.oci import image, layout
from imgbuild.oci.archive import write_archive
from imgbuild.oci.merged import MergedTree
from imgbuild.oci.reader import TarReader, open_inflated
from imgbuild.plan import image_digests
from imgbuild.plan.plan import create_plan
from imgbuild.sif import container as sif_files
from imgbuild.sif import image as sif_image
from imgbuild.sif import skim
from imgbuild.solve import sdist_wheel
from imgbuild.system.boundary import convert_read_errors
from imgbuild.system.files import remove_tree
from imgbuild.values import Arch, digest_of
from imgbuild.wheel import archive as wheel_archive
from imgbuild.wheel.install import installed_members
from tests.support import debs as deb_files
from tests.support import hostile, images, local_index, matrix_text, samples, wheels
from tests.support.layer_files import layer_file, unpack_layer_files

IMAGES = Path(__file__).parents[2] / "images"
pytestmark = pytest.mark.timeout(3600 if hostile.LONG else 60)
TARGET = "cu124-vllm0.7.2"
Given = Callable[[bytes], Path]


@pytest.fixture(name="given")
def _given(tmp_path: Path) -> Given:
    def put(data: bytes, name: str = "demo-1.0-py3-none-any.whl") -> Path:
        path = tmp_path / name
        path.write_bytes(data)
        return path

    return put


def wheel(folder: Path) -> bytes:
    files = {
        "demo/__init__.py": b"import os\n\nclass A(B):\n    def f(self, x: int = 1): ...\n" * 3,
        "demo/native.so": Path("/bin/true").read_bytes()[:9000],
        "demo-1.0.data/scripts/run": b"#!python\nprint(1)\n",
        "demo-1.0.dist-info/entry_points.txt": b"[console_scripts]\ntool = demo:main\n",
    }
    return wheels.write_wheel(folder, files).read_bytes()


def test_wheels_are_read_as_zipfile_reads_them_or_refused(tmp_path, given):
    def read(data: bytes) -> None:
        path = given(data)
        wheel = wheel_archive.read_wheel(path)
        for name in wheel.members:
            wheel.content(name)
        installed_members(path, prefix="/opt/venv", python="3.11")
        with zipfile.ZipFile(path) as other:
            names = {info.filename: info for info in other.infolist() if not info.is_dir()}
            for name, member in wheel.members.items():
                same = [
                    candidate
                    for candidate in names
                    if candidate == name or Path(candidate) == Path(name)
                ]
                assert other.read(same[0]) == b"".join(wheel.chunks(member))

    hostile.attack_reader(wheel(tmp_path), read)


def test_audit_refuses_hostile_wheels(tmp_path, given):
    def read(data: bytes) -> None:
        content = LocalContent(given(data), "demo-1.0-py3-none-any.whl")
        read_modules(content, find_modules(read_index(content).files))
        read_elf_facts(content)

    hostile.attack_reader(wheel(tmp_path), read)


def test_audit_of_hostile_source_files_does_not_crash(tmp_path, given):
    source = Path(hostile.__file__).read_bytes()

    def read(data: bytes) -> None:
        files = {"demo/__init__.py": data}
        content = LocalContent(wheels.write_wheel(tmp_path, files), "demo.whl")
        read_modules(content, {"demo": "demo/__init__.py"})

    hostile.attack_reader(source, read)


def test_hostile_shared_objects_are_refused(tmp_path):
    def read(data: bytes) -> None:
        path = wheels.write_wheel(tmp_path, {"demo/native.so": data}, method=zipfile.ZIP_STORED)
        read_elf_facts(LocalContent(path, "demo.whl"))

    hostile.attack_reader(Path("/bin/true").read_bytes(), read)


def test_corrupted_wheel_metadata_is_parsed_or_refused(tmp_path):
    texts = {
        "METADATA": wheels.minimal_metadata("demo", "1.0") + b"Requires-Dist: a>=1; extra == 'x'\n",
        "RECORD": b"demo/__init__.py,sha256=abc,10\ndemo-1.0.dist-info/RECORD,,\n",
        "entry_points.txt": b"[console_scripts]\ntool = demo:main\n",
    }

    def read(name: str, data: bytes) -> None:
        path = wheels.write_wheel(
            tmp_path, {f"demo-1.0.dist-info/{name}": data, "demo/__init__.py": b""}
        )
        installed_members(path, prefix="/opt/venv", python="3.11")
        packages.package_from_metadata("demo", data.decode(errors="replace"))
        read_index(LocalContent(path, "demo.whl"))

    for name, text in texts.items():
        hostile.attack_reader(text, partial(read, name))


def test_hostile_sdists_are_refused(tmp_path, given):
    files = {"PKG-INFO": wheels.minimal_metadata("demo", "1.0"), "demo/__init__.py": b"x = 1\n",
             "pyproject.toml": b'[build-system]\nrequires = ["setuptools"]\n'}  # fmt: skip
    packed = local_index.sdist_bytes("demo", "1.0", files)

    def read(data: bytes) -> None:
        path = given(data, "demo-1.0.tar.gz")
        sdist_code.write_code_wheel(path, tmp_path / "code.whl", "demo", "1.0")
        sdist_wheel.read_build_system(path, path.name)

    hostile.attack_reader(packed, read)
    hostile.attack_reader(gzip.decompress(packed), lambda data: read(hostile.gzip_bytes(data)))


def deb_parts() -> tuple[dict[str, bytes], bytes]:
    members = [
        deb_files.folder("./usr/"),
        deb_files.file("./usr/a", b"content" * 9),
        deb_files.symlink("./usr/l", "a"),
        deb_files.hardlink("./usr/h", "./usr/a"),
        deb_files.file("./usr/" + "long" * 40, b"x"),
    ]
    control = deb_files.tar_bytes(
        [deb_files.file("./control", deb_files.control_text("demo", Depends="a").encode())]
    )
    return {"debian-binary": b"2.0\n", "control.tar": control}, deb_files.tar_bytes(members)


@pytest.mark.parametrize("part", ["ar", "data", "control", "xz"])
def test_hostile_debian_packages_are_refused(tmp_path, given, part):
    def read(data: bytes) -> None:
        path = given(data, "demo.deb")
        debs.read_control(path)
        debs.read_notice(path, "demo")
        debs.read_deb(path, tmp_path / "spool", lambda *_: True)

    parts, data = deb_parts()
    whole = {**parts, "data.tar": data}
    if part == "ar":
        hostile.attack_reader(deb_files.ar_bytes(whole), read)
    elif part == "xz":
        packed = {**parts, "data.tar.xz": lzma.compress(data)}
        hostile.attack_reader(deb_files.ar_bytes(packed), read)
    else:
        name = f"{part}.tar"
        hostile.attack_reader(
            whole[name], lambda changed: read(deb_files.ar_bytes({**whole, name: changed}))
        )


def test_hostile_debian_indexes_are_refused():
    text = deb_files.control_text("a", Depends="b (>= 1), c | d") + "\n"
    text += deb_files.control_text("b", Provides="c (= 2)", Essential="yes")

    def read(data: bytes) -> None:
        with convert_read_errors("Packages"):
            archive = DebianArchive(parse_paragraphs(data.decode()))
            resolve_dependencies(archive, ["a"], file="matrix.yaml")

    hostile.attack_reader(text.encode(), read)


def layer_tar() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as out:

        def add(name: str, kind: bytes, target: str = "", data: bytes = b"", **pax: str) -> None:
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.size, info.pax_headers = kind, target, len(data), pax
            out.addfile(info, io.BytesIO(data))

        add("etc", tarfile.DIRTYPE)
        add("etc/file", tarfile.REGTYPE, data=b"content" * 100)
        add("etc/link", tarfile.SYMTYPE, "file")
        add("etc/hard", tarfile.LNKTYPE, "etc/file")
        add("etc/pipe", tarfile.FIFOTYPE)
        add("etc/ünï" + "long" * 50, tarfile.REGTYPE, data=b"x", comment="c")
        add("etc/.wh.gone", tarfile.REGTYPE)
    return buffer.getvalue()


@pytest.mark.parametrize("packed", [True, False])
def test_hostile_layers_are_unpacked_as_read_or_refused(tmp_path, given, packed):
    def read(data: bytes) -> None:
        path, root = given(data, "layer"), tmp_path / "root"
        try:
            unpack_layer_files([path], root)
            tree = MergedTree()
            with open_inflated(layer_file(path)) as stream:
                tree.add(TarReader(stream, "layer"))
            assert skim.layer_entries(layer_file(path))
            for name, node in tree.iterate_paths():
                there = (root / name[1:]).lstat()
                assert node.kind != "file" or there.st_size == node.size
        finally:
            remove_tree(root)
            assert {entry.name for entry in tmp_path.iterdir()} <= {"layer"}

    if packed:
        hostile.attack_reader(hostile.gzip_bytes(layer_tar()), read)
    else:
        hostile.attack_reader(layer_tar(), lambda data: read(hostile.gzip_bytes(data)))


@pytest.fixture(name="image_path")
def _image_path(tmp_path: Path) -> Path:
    blob = images.make_layer(tmp_path / "blobs", [images.text_member("opt/hello", "hello\n")])
    out = tmp_path / "image"
    layout.write_layout(out, {Arch.X86_64: images.image_files([blob])}, "tiny")
    return out


@pytest.mark.parametrize("part", ["index.json", "manifest", "config", "oci-layout"])
def test_hostile_documents_of_a_layout_are_refused(image_path, part):
    """Documents above the changed one name it by its new digest, as an attacker would."""
    index = json.loads((image_path / "index.json").read_bytes())
    top = index["manifests"][0]
    manifest = json.loads(layout.blob_path(image_path, top["digest"]).read_bytes())
    config = layout.blob_path(image_path, manifest["config"]["digest"]).read_bytes()

    def put(data: bytes) -> dict[str, object]:
        layout.blob_path(image_path, digest_of(data)).write_bytes(data)
        return {"digest": digest_of(data), "size": len(data)}

    def read(data: bytes) -> None:
        if part == "config":
            data = json.dumps({**manifest, "config": {**manifest["config"], **put(data)}}).encode()
        if part in ("config", "manifest"):
            data = json.dumps({**index, "manifests": [{**top, **put(data)}]}).encode()
        (image_path / ("oci-layout" if part == "oci-layout" else "index.json")).write_bytes(data)
        image.read_image(image_path)
        summary = sif_image.read_sif_source(layout.read_layout(image_path), Arch.X86_64)
        assert "\0" not in "".join((*summary.environment.values(), *summary.command))
        layout.has_complete_image(image_path, top["digest"])

    seeds = {"manifest": json.dumps(manifest).encode(), "config": config}
    seed = seeds.get(part) or (image_path / part).read_bytes()
    hostile.attack_reader(seed, read, document=True)


def test_hostile_image_archives_are_refused(image_path, tmp_path, given):
    write_archive(image_path, tmp_path / "image.tar", "oci-archive", "tiny:1")

    def read(data: bytes) -> None:
        image.read_image(given(data, "changed.tar"))

    hostile.attack_reader((tmp_path / "image.tar").read_bytes(), read)


def test_hostile_sifs_are_refused(tmp_path, given):
    objects = [sif_files.DataObject(kind=sif_files.JSON, name="a", data=b"{}" * 50)]
    path = given(bytes(sif_files.file_system_offset(objects)) + b"squash", "image.sif")
    sif_files.write_container(path, objects, Arch.X86_64, 0)
    head = path.read_bytes()[: sif_files.DESCRIPTORS_OFFSET + 3 * sif_files.DESCRIPTOR.size]
    rest = path.read_bytes()[len(head) :]
    hostile.attack_reader(
        head, lambda data: sif_files.read_objects(given(data + rest, "changed.sif"))
    )


def test_hostile_index_pages_are_refused():
    file = "demo-1.0-py3-none-any.whl"
    entry = {
        "filename": file, "url": f"../{file}#sha256=a", "hashes": {"sha256": "0" * 64},
        "size": 5, "upload-time": "2025-01-01T00:00:00Z", "core-metadata": {"sha256": "1" * 64},
    }  # fmt: skip
    html = b'<base href="/x/"><a href="demo-1.0-py3-none-any.whl#sha256=0" data-yanked>demo</a>' * 3
    api = {"releases": {"1.0": [{"filename": "demo-1.0.tar.gz", "url": "a", "digests": {}}]}}

    class Web:
        def __init__(self, page: bytes, api: bytes) -> None:
            self.page, self.api = page, api

        def text(self, url: str, accept: str = "*/*") -> TextPage:
            data = self.api if url.endswith("/json") else self.page
            kind = "text/html" if data.startswith(b"<") else "application/json"
            return TextPage(url, data.decode(errors="replace"), kind, 200)

    def read(data: bytes, more: bytes = json.dumps(api).encode()) -> None:
        web = Web(data, more)
        places = {"default": pages.IndexAddress(name="default", address="http://localhost/simple/")}
        for file in pages.IndexLookup(places, {}, "default", web).files("demo"):
            assert file.version is None or file.size is None or file.size >= 0

    hostile.attack_reader(json.dumps({"files": [entry] * 2}).encode(), read, document=True)
    hostile.attack_reader(html, read)
    hostile.attack_reader(json.dumps(api).encode(), partial(read, html), document=True)


def test_hostile_locks_are_refused():
    data = codec.encode(samples.lock(samples.wheel("numpy")))

    def read(changed: bytes) -> None:
        lock = lock_file.decode_lock(changed, "lock.json", hint="", remedy="")
        lock_file.matrix_differences(lock, samples.matrix())
        for arch in lock.arch:
            create_plan(lock, arch)

    hostile.attack_reader(data, read, document=True)


def test_hostile_lock_artifacts_are_refused():
    folder = IMAGES / TARGET
    data = {name: (folder / name).read_bytes() for name in (bundle.LOCK, bundle.DIGESTS_FILE)}
    lock = lock_file.decode_lock(data[bundle.LOCK], "lock.json", hint="", remedy="")

    def read_digests(changed: bytes) -> None:
        image_digests.decode_digests(changed, lock, file="digests.json", hint="")

    def read_lock(changed: bytes) -> None:
        with convert_read_errors("the attached lock"):
            bundle.read_lock_bundle({**data, bundle.LOCK: changed}, "the attached lock")

    hostile.attack_reader(data[bundle.DIGESTS_FILE], read_digests, document=True)
    hostile.attack_reader(data[bundle.LOCK], read_lock, document=True)


def test_hostile_signatures_are_refused():
    envelope = {"payload": "e30=", "payloadType": "application/vnd.in-toto+json",
                "signatures": [{"sig": "AAAA", "keyid": ""}]}  # fmt: skip
    whole = {"mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json", "dsseEnvelope": envelope,
             "verificationMaterial": {"publicKey": {"hint": "x"}}}  # fmt: skip

    def read(changed: bytes) -> None:
        signature_bundle = codec.decode(changed, Bundle, file="bundle")
        if signature_bundle.dsse_envelope is not None:
            assert isinstance(signature_bundle.dsse_envelope, Envelope)
            assert signature_bundle.dsse_envelope.signed

    hostile.attack_reader(json.dumps(whole).encode(), read, document=True)


def test_hostile_matrices_are_refused(given):
    text = matrix_text.VALID_MATRIX.replace(matrix_text.MARK, "")
    hostile.attack_reader(
        text.encode(), lambda changed: matrices.load_matrix(given(changed, "matrix.yaml"))
    )
