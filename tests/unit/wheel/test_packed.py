"""Wheels of data files: readable by other tools, with errors at the limits of a zip."""

from __future__ import annotations

import zipfile

import pytest

from imgbuild.errors import InputError
from imgbuild.wheel import archive, packed
from imgbuild.wheel.zipformat import DEFLATED, STORED


def test_other_tools_can_read_it(tmp_path):
    files = {}
    for name, data in {"big.txt": b"word " * 999, "é, x": b"\0\1", "empty": b""}.items():
        files[f"share/{name}"] = tmp_path / name
        (tmp_path / name).write_bytes(data)
    wheel = packed.write("a-package", "0+b1", "cp311-none-any", files, tmp_path / "out")
    assert wheel.name == "a_package-0+b1-cp311-none-any.whl"
    with zipfile.ZipFile(wheel) as found:
        assert found.testzip() is None
        names = found.namelist()
        assert names[:-1] == sorted(names[:-1], key=str.encode)
        assert names[-1] == "a_package-0+b1.dist-info/RECORD"
        for path, place in files.items():
            assert found.read(f"a_package-0+b1.data/data/{path}") == place.read_bytes()
        kinds = {info.filename.rpartition("/")[2]: info.compress_type for info in found.infolist()}
        assert (kinds["big.txt"], kinds["empty"]) == (DEFLATED, STORED)
        assert {info.date_time for info in found.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        assert {info.external_attr >> 16 for info in found.infolist()} == {0o100644}
    own = archive.read(wheel)
    archive.verify(own)  # hashes of RECORD
    assert (own.text("WHEEL") or "").endswith("Root-Is-Purelib: true\nTag: cp311-none-any\n")


def test_the_limits_of_a_zip(tmp_path, monkeypatch):
    (tmp_path / "x").write_bytes(b"x" * 100)
    files = {f"{number}": tmp_path / "x" for number in range(8)}
    monkeypatch.setattr(packed, "FULL16", 10)
    with pytest.raises(InputError, match="too many files for one wheel: 8"):
        packed.write("a", "1", "py3-none-any", files, tmp_path / "out")
    monkeypatch.setattr(packed, "FULL16", 0xFFFF)
    whole = packed.write("a", "1", "py3-none-any", files, tmp_path / "whole").stat().st_size
    for limit in (300, whole - 100):  # within a member, and with the directory
        monkeypatch.setattr(packed, "FULL32", limit)
        with pytest.raises(InputError, match="wheel too large"):
            packed.write("a", "1", "py3-none-any", files, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []
