"""The cache that runs in an image, on files as Triton's own cache writes them.

Triton's class is written down here as far as this one uses it; the real Triton has it in
tests/integration/test_triton_kernels.py.
"""

from __future__ import annotations

import json
import os
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from imgbuild.precompile import triton

KEY = "A" * 52
NAMES = ("add.cubin", "add.json")


class FileCacheManager:
    """Triton's, in short."""

    def __init__(self, key: str, override: bool = False, dump: bool = False) -> None:
        folder = Path(os.environ["TRITON_CACHE_DIR"]) / key
        folder.mkdir(parents=True, exist_ok=True)
        self.cache_dir = str(folder)

    def _make_path(self, name: str) -> str:
        return f"{self.cache_dir}/{name}"

    def get_group(self, name: str) -> dict[str, str] | None:
        path = Path(self._make_path(f"__grp__{name}"))
        if not path.exists():
            return None
        children = json.loads(path.read_text())["child_paths"]
        return {child: place for child, place in children.items() if Path(place).exists()}

    def put(self, data: bytes | str, name: str, binary: bool = True) -> str:
        path = Path(self._make_path(name))
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
        return str(path)

    def put_group(self, name: str, group: dict[str, str]) -> str:
        return self.put(json.dumps({"child_paths": group}), f"__grp__{name}")


@pytest.fixture(name="image")
def _image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module as it is installed, with one kernel, and an empty cache."""
    place = tmp_path / "site/imgbuild_triton"
    folder = place / "kernels" / KEY
    folder.mkdir(parents=True)
    (place / "__init__.py").write_text(triton.CACHE)
    for name in NAMES:
        (folder / name).write_text(f"the image's {name}")
    (folder / "__grp__add.json").write_text(json.dumps(NAMES))
    cache = types.ModuleType("triton.runtime.cache")
    cache.FileCacheManager = FileCacheManager  # type: ignore[attr-defined]
    for name in ("triton", "triton.runtime"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "triton.runtime.cache", cache)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    module = types.ModuleType("imgbuild_triton")
    module.__file__ = str(place / "__init__.py")
    exec(compile(triton.CACHE, module.__file__, "exec"), module.__dict__)
    return module


def contents(group: dict[str, str] | None) -> dict[str, str]:
    assert group is not None
    return {name: Path(path).read_text() for name, path in group.items()}


def test_a_kernel_of_the_image_comes_into_the_cache(image, tmp_path):
    found = image.Cache(KEY).get_group("add.json")
    assert contents(found) == {name: f"the image's {name}" for name in NAMES}
    assert {Path(path).parent for path in found.values()} == {tmp_path / "cache" / KEY}
    assert image.Cache("B" * 52).get_group("add.json") is None
    assert image.Cache(KEY).get_group("other.json") is None


def test_what_the_cache_has_is_taken_first(image):
    own = FileCacheManager(KEY)
    path = own.put(b"the cache's", "add.json")
    own.put_group("add.json", {"add.json": path})
    assert contents(image.Cache(KEY).get_group("add.json")) == {"add.json": "the cache's"}


@pytest.mark.parametrize(
    "text", ["{", '{"child_paths": {}}', '{"child_paths": {"add.json": "/no"}}']
)
def test_a_group_that_names_nothing_that_is_there_is_made_anew(image, text, tmp_path):
    """As after the folder was moved: paths in it are absolute."""
    Path(FileCacheManager(KEY)._make_path("__grp__add.json")).write_text(text)
    assert contents(image.Cache(KEY).get_group("add.json")).keys() == set(NAMES)
    group = json.loads((tmp_path / "cache" / KEY / "__grp__add.json").read_text())
    assert group["child_paths"]["add.json"] == str(tmp_path / "cache" / KEY / "add.json")


def test_what_cannot_be_copied_is_compiled(image, tmp_path, monkeypatch):
    def refuse(*_: object) -> str:
        raise PermissionError("Read-only file system")

    with monkeypatch.context() as patched:
        patched.setattr(FileCacheManager, "put", refuse)
        assert image.Cache(KEY).get_group("add.json") is None
    folder = tmp_path / "site/imgbuild_triton/kernels" / KEY
    (folder / "add.cubin").unlink()
    assert image.Cache(KEY).get_group("add.json") is None
    (folder / "__grp__add.json").write_text("[")
    assert image.Cache(KEY).get_group("add.json") is None


def test_what_people_override_or_dump_is_theirs(image):
    for option in ("override", "dump"):
        assert image.Cache(KEY, **{option: True}).get_group("add.json") is None
