"""Wheels from sdists: what is read, what is refused, and bytes that follow from inputs."""

import io
import tarfile
import zipfile

import msgspec
import pytest

from imgbuild.errors import IntegrityError, NoSolution
from imgbuild.solve import sdist_wheel
from tests.support.local_index import sdist_bytes, wheel_bytes

PYPROJECT = b"""
[build-system]
requires = ["flit_core >=3"]
build-backend = "flit_core.buildapi"
backend-path = ["tools"]
"""


@pytest.fixture
def sdist(tmp_path):
    def make(files):
        path = tmp_path / "demo-1.0.tar.gz"
        path.write_bytes(sdist_bytes("demo", "1.0", files))
        return path

    return make


def test_build_system_of_an_sdist(sdist):
    path = sdist({"pyproject.toml": PYPROJECT, "vendored/pyproject.toml": b"[build-system]\n"})
    assert sdist_wheel.system(path, path.name) == sdist_wheel.System(
        requires=("flit_core >=3",), backend="flit_core.buildapi", backend_path=("tools",)
    )


def test_an_sdist_that_says_nothing_is_built_by_setuptools(sdist):
    path = sdist({"setup.py": b""})
    assert sdist_wheel.system(path, path.name) == sdist_wheel.System(
        requires=sdist_wheel.DEFAULT_REQUIRES, backend=sdist_wheel.DEFAULT_BACKEND
    )


def job(folder, version="1.0"):
    return sdist_wheel.SdistJob(
        package="demo",
        version=version,
        sdist=folder,
        requires=(),
        root=folder,
        env={},
        folder=folder,
    )


@pytest.mark.parametrize(
    ("name", "data", "version", "words"),
    [
        ("demo-1.0-cp311-cp311-linux_x86_64.whl", {}, "1.0", "which is for one platform"),
        (
            "demo-1.0-py3-none-any.whl",
            {"demo/_fast.so": b"\x7fELF\x02"},
            "1.0",
            "machine code: demo/_fast.so",
        ),
        ("demo-1.0-py3-none-any.whl", {"demo/a.py": b""}, "1.1", "it builds version 1.0, not 1.1"),
    ],
)
def test_what_is_not_pure_is_refused(tmp_path, name, data, version, words):
    path = tmp_path / name
    path.write_bytes(wheel_bytes("demo", "1.0", files=data))
    with pytest.raises(NoSolution, match="does not yield a pure wheel") as caught:
        sdist_wheel.refuse_impure(job(tmp_path, version), path)
    assert words in caught.value.reasons[0]


def zipped(members, date, method):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, data, mode in members:
            info = zipfile.ZipInfo(name, date)
            info.compress_type = method
            info.external_attr = mode << 16
            archive.writestr(info, data)
    return buffer.getvalue()


def test_repacked_bytes_follow_from_names_contents_and_executable_bits(tmp_path):
    members = [
        ("demo-1.0.dist-info/RECORD", b"old lines", 0o100644),
        ("demo/tool.sh", b"#!/bin/sh\n", 0o100775),
        ("demo/with, comma.py", b"", 0o100664),
        ("demo-1.0.dist-info/METADATA", b"Name: demo\n", 0o100600),
        ("demo/", b"", 0o040755),
    ]
    first, second = tmp_path / "a.whl", tmp_path / "b.whl"
    first.write_bytes(zipped(members, (2020, 1, 1, 0, 0, 0), zipfile.ZIP_DEFLATED))
    second.write_bytes(zipped(members[::-1], (2024, 5, 6, 7, 8, 10), zipfile.ZIP_STORED))
    out = [
        sdist_wheel.repack(path, tmp_path / f"out-{path.name}").read_bytes()
        for path in (first, second)
    ]
    assert out[0] == out[1]
    with zipfile.ZipFile(io.BytesIO(out[0])) as archive:
        assert archive.namelist() == [
            "demo-1.0.dist-info/METADATA",
            "demo/tool.sh",
            "demo/with, comma.py",
            "demo-1.0.dist-info/RECORD",
        ]
        modes = [info.external_attr >> 16 for info in archive.infolist()]
        assert modes == [0o100644, 0o100755, 0o100644, 0o100644]
        record = archive.read("demo-1.0.dist-info/RECORD").decode().splitlines()
    assert record[0].startswith("demo-1.0.dist-info/METADATA,sha256=")
    assert record[0].endswith(",11")
    assert record[2].startswith('"demo/with, comma.py",sha256=')
    assert record[3] == "demo-1.0.dist-info/RECORD,,"


def held(kind: bytes, name: str = "demo-1.0/x", link: str = "", size: int = 0) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as tar:
        member = tarfile.TarInfo(name)
        member.type, member.linkname, member.size = kind, link, size
        tar.addfile(member, io.BytesIO(bytes(size)))
    return made.getvalue()


@pytest.mark.parametrize("data", [
    held(tarfile.REGTYPE, "../../x"),
    held(tarfile.SYMTYPE, link="/etc"),
    held(tarfile.CHRTYPE),
    held(tarfile.REGTYPE, size=5000)[:-20],
    b"PK\5\6" + bytes(18) + b"no archive",
    held(tarfile.REGTYPE, size=5000),
], ids=["out", "link", "device", "cut", "zip", "large"])  # fmt: skip
def test_an_sdist_that_cannot_be_unpacked_is_refused(tmp_path, monkeypatch, data):
    monkeypatch.setattr(sdist_wheel, "UNPACKED", 4999, raising=False)
    path = tmp_path / "demo-1.0.tar.gz"
    path.write_bytes(data)
    with pytest.raises(IntegrityError, match=r"demo 1\.0"):
        sdist_wheel.build(msgspec.structs.replace(job(tmp_path), sdist=path))
    assert not (tmp_path.parent / "x").exists()


def test_wheels_become_importable_with_both_libraries(tmp_path):
    path = tmp_path / "demo-1.0-py3-none-any.whl"
    path.write_bytes(
        wheel_bytes("demo", "1.0", files={"demo-1.0.data/platlib/deep/x.py": b"1", "top.py": b"2"})
    )
    site = tmp_path / "site"
    sdist_wheel.unpack_wheel(path, site)
    assert (site / "deep/x.py").read_bytes() == b"1"
    assert (site / "top.py").read_bytes() == b"2"
    assert not (site / "demo-1.0.data").exists()
    assert b"Version: 1.0" in sdist_wheel.metadata(path)


def test_the_environment_of_a_build_is_the_same_everywhere():
    assert sdist_wheel.environment()["PYTHONHASHSEED"] == "0"
    assert sdist_wheel.environment()["SOURCE_DATE_EPOCH"] == "315532800"
    assert not set(sdist_wheel.environment()) & {"USER", "LOGNAME", "HOSTNAME"}
