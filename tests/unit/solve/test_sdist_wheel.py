"""Tests building wheels from sdists: configuration, refused sdists and reproducible bytes."""

import io
import tarfile
import zipfile

import msgspec
import pytest

from imgbuild.errors import IntegrityError, NoSolution
from imgbuild.solve import sdist_wheel
from tests.support.local_index import sdist_bytes, wheel_bytes
from tests.support.rows import each_row

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


def test_build_system_of_an_sdist_is_read(sdist):
    path = sdist({"pyproject.toml": PYPROJECT, "vendored/pyproject.toml": b"[build-system]\n"})
    assert sdist_wheel.read_build_system(path, path.name) == sdist_wheel.BuildSystem(
        requires=("flit_core >=3",), backend="flit_core.buildapi", backend_path=("tools",)
    )


def test_sdist_without_a_build_system_uses_setuptools(sdist):
    path = sdist({"setup.py": b""})
    assert sdist_wheel.read_build_system(path, path.name) == sdist_wheel.BuildSystem(
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
        ("demo-1.0-cp311-cp311-linux_x86_64.whl", {}, "1.0", "which is platform-specific"),
        (
            "demo-1.0-py3-none-any.whl",
            {"demo/_fast.so": b"\x7fELF\x02"},
            "1.0",
            "machine code: demo/_fast.so",
        ),
        ("demo-1.0-py3-none-any.whl", {"demo/a.py": b""}, "1.1", "it builds version 1.0, not 1.1"),
    ],
)
def test_built_wheel_that_is_not_pure_is_refused(tmp_path, name, data, version, words):
    path = tmp_path / name
    path.write_bytes(wheel_bytes("demo", "1.0", files=data))
    with pytest.raises(NoSolution, match="cannot be built as a pure wheel") as caught:
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


def test_repacked_wheel_depends_only_on_names_contents_and_executable_bits(tmp_path):
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
        sdist_wheel.repack_wheel(path, tmp_path / f"out-{path.name}").read_bytes()
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


def test_build_environment_does_not_depend_on_the_machine():
    assert sdist_wheel.build_environment()["PYTHONHASHSEED"] == "0"
    assert sdist_wheel.build_environment()["SOURCE_DATE_EPOCH"] == "315532800"
    assert not set(sdist_wheel.build_environment()) & {"USER", "LOGNAME", "HOSTNAME"}


def leaving(steps: str = "abcdefghijklmnop") -> bytes:
    """A tar with links to ../../../host below a path longer than PATH_MAX.

    Python's `data_filter` accepted it before the fix of CVE-2025-4517.
    """
    letters, folder = "d" * 247, "demo-1.0"
    long = f"demo-1.0/{'/'.join(steps)}/{'l' * 254}"
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:

        def add(name: str, kind: bytes, link: str = "", data: bytes = b"") -> None:
            member = tarfile.TarInfo(name)
            member.type, member.linkname, member.size = kind, link, len(data)
            tar.addfile(member, io.BytesIO(data))

        add(folder, tarfile.DIRTYPE)
        for step in steps:
            add(f"{folder}/{letters}", tarfile.DIRTYPE)
            add(f"{folder}/{step}", tarfile.SYMTYPE, letters)
            folder += f"/{letters}"
        add(long, tarfile.SYMTYPE, "../" * len(steps))
        out = long.removeprefix("demo-1.0/")
        add("demo-1.0/escape", tarfile.SYMTYPE, f"{out}/../../../host")
        add("demo-1.0/flag", tarfile.LNKTYPE, "demo-1.0/escape/flag")
        add("demo-1.0/flag", tarfile.REGTYPE, data=b"other")
        add("demo-1.0/escape/new", tarfile.REGTYPE, data=b"new")
    return stream.getvalue()


def test_sdist_is_unpacked_inside_its_folder(tmp_path):
    host, folder = tmp_path / "host", tmp_path / "job"
    for place in (host, folder):
        place.mkdir()
    (host / "flag").write_text("mine")
    path = tmp_path / "demo-1.0.tar.gz"
    path.write_bytes(leaving())
    with pytest.raises(IntegrityError, match=r"demo 1\.0: its sdist: 'demo-1\.0/a' is a link"):
        sdist_wheel.build_wheel(msgspec.structs.replace(job(folder), sdist=path))
    assert {file.name: file.read_text() for file in host.iterdir()} == {"flag": "mine"}


def test_build_requirement_with_too_long_path_is_refused(tmp_path):
    long = "/".join(["d" * 247] * 17)
    wheel = tmp_path / "helper-1.0-py3-none-any.whl"
    wheel.write_bytes(wheel_bytes("helper", "1.0", files={f"{long}.py": b""}))
    path = tmp_path / "demo-1.0.tar.gz"
    path.write_bytes(sdist_bytes("demo", "1.0", {"setup.py": b""}))
    (tmp_path / "job").mkdir()
    task = msgspec.structs.replace(job(tmp_path / "job"), sdist=path, requires=(wheel,))
    with pytest.raises(IntegrityError, match=r"helper-1\.0.*more than 3840 bytes"):
        sdist_wheel.build_wheel(task)


@each_row(
    ("line", "name"),
    [
        ("AttributeError: module 'inspect' has no attribute 'getargspec'. Did you mean: 'getargs'?",
         "inspect.getargspec"),
        ("AttributeError: module 'collections' has no attribute 'Mapping'", "collections.Mapping"),
        ("ModuleNotFoundError: No module named 'distutils.core'", "distutils"),
        ("ModuleNotFoundError: No module named 'imp'", "imp"),
    ],
)  # fmt: skip
def test_build_failure_of_code_for_an_older_python_is_recognized(line: str, name: str) -> None:
    error = sdist_wheel.build_failure("demo", "1.0", f"Traceback …\n{line}")
    assert error.reasons[0].startswith(f"it uses {name}, which was removed from Python")
    assert "--exclude demo" in (error.hint or "")


@pytest.mark.parametrize("line", ["", "No module named 'numpy'", "AttributeError: 'f' has no 'g'"])
def test_other_build_failure_is_shown_unchanged(line: str) -> None:
    error = sdist_wheel.build_failure("demo", "1.0", line)
    assert error.reasons == tuple(line.splitlines())
    assert "may need `env` or `requires`" in (error.hint or "")
