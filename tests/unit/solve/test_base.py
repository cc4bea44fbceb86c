"""Tests reading the accounts and the Python of a registry base from its layers."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from imgbuild.errors import InputError, IntegrityError
from imgbuild.matrix.model import RegistryBase
from imgbuild.solve import base as bases
from tests.support.layer_files import layer_file
from tests.support.rows import each_row

IMAGE = f"localhost:5000/base@sha256:{'a' * 64}"
ROOT = b"root:x:0:0::/root:/bin/sh\n"
GOOD = {"etc/passwd": ROOT, "etc/group": b"root:x:0:\n"}


def layer(folder: Path, members: Mapping[str, bytes | str | None]) -> Path:
    """A layer of files (bytes), links (text) and folders (None) in the given order."""
    path = folder / f"layer-{len(list(folder.iterdir()))}"
    with tarfile.open(path, "w:gz") as tar:
        for name, what in members.items():
            info = tarfile.TarInfo(name)
            if what is None:
                info.type = tarfile.DIRTYPE
            elif isinstance(what, str):
                info.type, info.linkname = tarfile.SYMTYPE, what
            else:
                info.size = len(what)
            tar.addfile(info, io.BytesIO(what if isinstance(what, bytes) else b""))
    return path


def read(folder: Path, *layers: Mapping[str, bytes | str | None]) -> bases.ImageContents:
    return bases.merge_contents([layer_file(layer(folder, members)) for members in layers])


def base(interpreter: str = "/usr/bin/python3", python: str = "3.11") -> RegistryBase:
    return RegistryBase(image=IMAGE, python=python, glibc="2.36", interpreter=interpreter)


@pytest.mark.parametrize("prefix", ["", "./", "/"])
def test_upper_layer_of_a_base_takes_precedence(tmp_path, prefix):
    upper = ROOT + b"me:x:1:1::/:/bin/sh\n"
    below = {f"{prefix}{name}": data for name, data in GOOD.items()}
    base_files = read(tmp_path, below, {f"{prefix}etc/passwd": upper})
    assert bases.read_accounts(IMAGE, base_files) == {
        "etc/passwd": upper.decode(), "etc/group": "root:x:0:\n"
    }  # fmt: skip


@pytest.mark.parametrize("hidden", ["etc/.wh.passwd", "etc/.wh..wh..opq", ".wh.etc"])
def test_paths_removed_by_an_upper_layer_are_absent(tmp_path, hidden):
    base_files = read(tmp_path, GOOD, {hidden: b""})
    with pytest.raises(InputError, match="/etc/passwd does not exist") as caught:
        bases.read_accounts(IMAGE, base_files)
    assert IMAGE in caught.value.message
    # Files of the layer with the opaque marker are retained, in either order.
    for members in ({hidden: b"", **GOOD}, {**GOOD, hidden: b""}):
        (folder := tmp_path / str(len(list(tmp_path.iterdir())))).mkdir()
        assert (
            bases.read_accounts(IMAGE, read(folder, GOOD, members))["etc/passwd"] == ROOT.decode()
        )


@each_row(
    ("members", "text"),
    [
        ({}, "/etc/passwd does not exist"),
        ({"etc/passwd": ROOT}, "/etc/group does not exist"),
        ({**GOOD, "etc/passwd": "../usr/lib/passwd"}, "is a link to ../usr/lib/passwd"),
        ({**GOOD, "etc/passwd": None}, "/etc/passwd is not a regular file"),
        ({**GOOD, "etc/passwd": ROOT + b"m\xfc:x:1:1::/:\n"}, r"is not UTF-8: b'\\xfc:x:1"),
    ],
)
def test_invalid_account_files_are_refused(tmp_path, members, text):
    with pytest.raises(InputError, match=text) as caught:
        bases.read_accounts(IMAGE, read(tmp_path, members))
    assert "choose a base with this file" in str(caught.value.hint)


@each_row(
    "members",
    [
        {"usr/bin/python3": b""},
        {"usr/bin/python3": "python3.11", "usr/bin/python3.11": b""},
        {"usr/bin/python3": "../local/bin/python3.11", "usr/local/bin/python3.11": b""},
        {"usr/bin/python3": "/opt/python3.11", "opt": "usr/opt", "usr/opt/python3.11": b""},
        {"usr/bin": "/bin", "bin": "usr/sbin", "usr/sbin/python3": b""},
    ],
)
def test_valid_base_pythons_are_accepted(tmp_path, members):
    bases.refuse_other_python(base(), read(tmp_path, members))


@each_row(
    ("members", "text", "hint"),
    [
        ({}, "/usr/bin/python3 does not exist", "has no python3.N"),
        ({"usr/bin/python3": "gone"}, "/usr/bin/python3 does not exist", "has no python3.N"),
        ({"usr/bin/python3": "python3"}, "does not exist", "has no python3.N"),
        (
            {"usr/local/bin/python3.12": b""},
            "/usr/bin/python3 does not exist",
            "the image has /usr/local/bin/python3.12; set",
        ),
        (
            {"usr/bin/python3": "python3.13", "usr/bin/python3.13": b""},
            "is /usr/bin/python3.13, not Python 3.11",
            "the image has /usr/bin/python3.13; set",
        ),
    ],
)
def test_invalid_base_pythons_are_refused(tmp_path, members, text, hint):
    with pytest.raises(InputError, match=text) as caught:
        bases.refuse_other_python(base(), read(tmp_path, members))
    assert IMAGE in caught.value.message
    assert hint in str(caught.value.hint)


def test_damaged_base_layer_is_refused(tmp_path):
    path = layer(tmp_path, {"etc/passwd": ROOT * 1000})
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(IntegrityError, match=path.name):
        bases.merge_contents([layer_file(path)])
