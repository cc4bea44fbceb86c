"""Tests reading the Python code of an sdist as a wheel."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from imgbuild.audit.packages import sdist_code
from imgbuild.errors import IntegrityError
from tests.support.local_index import sdist_bytes

INFO = b"Metadata-Version: 2.1\nName: gadget-kit\nVersion: 1.0\n\nRequires-Dist: of the text\n"
REQUIRES = b"helper>=2\n\n[extra]\nother\n"


def wheel_contents(tmp_path: Path, files: dict[str, bytes]) -> dict[str, bytes]:
    sdist, wheel = tmp_path / "gadget-kit-1.0.tar.gz", tmp_path / "made.whl"
    sdist.write_bytes(sdist_bytes("gadget-kit", "1.0", files))
    sdist_code.write_code_wheel(sdist, wheel, "gadget-kit", "1.0")
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.mark.parametrize("folder", ["", "src/"])
def test_packages_and_the_module_named_like_the_sdist_are_included(
    tmp_path: Path, folder: str
) -> None:
    files = {
        "PKG-INFO": INFO,
        "setup.py": b"",
        f"{folder}gadget/__init__.py": b"A = 1\n",
        f"{folder}gadget/part/code.py": b"B = 1\n",
        f"{folder}gadget/data.bin": b"\0",
        f"{folder}gadget_kit.py": b"C = 1\n",
        f"{folder}tests/__init__.py": b"",
        "examples/run.py": b"",
    }
    contents = wheel_contents(tmp_path, files)
    assert contents.pop("gadget_kit-1.0.dist-info/METADATA") == INFO
    assert contents == {
        "gadget/__init__.py": b"A = 1\n",
        "gadget/part/code.py": b"B = 1\n",
        "gadget_kit.py": b"C = 1\n",
    }


def test_requirements_file_of_an_old_sdist_is_added_to_its_metadata(tmp_path: Path) -> None:
    contents = wheel_contents(
        tmp_path, {"PKG-INFO": INFO, "gadget_kit.egg-info/requires.txt": REQUIRES}
    )
    headers, _, text = contents["gadget_kit-1.0.dist-info/METADATA"].partition(b"\n\n")
    assert headers.endswith(b"\nRequires-Dist: helper>=2")
    assert text == b"Requires-Dist: of the text\n"


def test_sdist_paths_outside_the_folder_are_omitted(tmp_path: Path) -> None:
    contents = wheel_contents(
        tmp_path, {"PKG-INFO": INFO, "../../etc/x.py": b"", "a/../../b.py": b""}
    )
    assert list(contents) == ["gadget_kit-1.0.dist-info/METADATA"]


def test_error_for_an_unreadable_sdist_names_the_sdist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(IntegrityError, match=r"gadget-kit-1\.0\.tar\.gz has no PKG-INFO"):
        wheel_contents(tmp_path, {"gadget.py": b""})
    monkeypatch.setattr(sdist_code, "LARGEST_FILE", 3)
    with pytest.raises(IntegrityError, match=r"tar\.gz is too large to read"):
        wheel_contents(tmp_path, {"PKG-INFO": INFO})
    broken = tmp_path / "broken.tar.gz"
    broken.write_bytes(b"\x1f\x8b\0")
    with pytest.raises(IntegrityError, match=r"broken\.tar\.gz: Compressed file ended"):
        sdist_code.write_code_wheel(broken, tmp_path / "x.whl", "broken", "1.0")
