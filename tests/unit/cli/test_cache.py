"""Tests the output of each `imgbuild cache` command, as text and as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from imgbuild.cache.store import NAME, Store
from imgbuild.cli._output import size_text
from imgbuild.cli.cache import KINDS, app
from imgbuild.errors import InputError, IntegrityError
from imgbuild.values import sha256
from tests.support.rows import each_row

WHEEL = b"w" * 1500


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with one wheel and one layer, without a size limit."""
    monkeypatch.setenv("IMGBUILD_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("IMGBUILD_CACHE_SIZE", raising=False)
    store = Store.open()
    with store.scratch() as folder:
        (folder / "wheel").write_bytes(WHEEL)
        store.add_file(folder / "wheel", sha256(WHEEL))
        (folder / "layer").write_bytes(b"layer")
        store.add_blob(folder / "layer", f"sha256:{sha256(b'layer')}")
    store.put_fact(NAME, sha256(WHEEL), b"trl-0.18.2-py3-none-any.whl")
    store.release()
    return store.root


def said(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def answered(*arguments: str) -> Any:
    return json.loads(said(*arguments, "--json"))


def test_cache_info_shows_sizes(root: Path) -> None:
    value = answered("info")
    assert value["path"] == said("info").splitlines()[0] == str(root)
    sizes = {kind["kind"]: (kind["entries"], kind["size"]) for kind in value["kinds"]}
    assert sizes["file"] == (1, 1500)
    assert sizes["blob"] == (1, 5)
    assert value["size"] == sum(size for _, size in sizes.values())
    assert value["limit"] is None
    assert value["free"] > 0
    text = said("info")
    assert text.startswith(f"{root}\n")
    assert "files: 1, 1.5 kB" in text
    assert "layers: 1, 5 B" in text
    assert "IMGBUILD_CACHE_SIZE" in text


def test_each_kind_of_cache_entry_has_a_name(root: Path) -> None:
    """The text output has names for kinds of entries, in the plural."""
    for folder in ("unpacked/0/x", "roots/0/x"):
        (root / folder).mkdir(parents=True)
        (root / folder / "size").write_text("7")
    for folder in ("kernels/x", "partial"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    (root / "partial/y").write_text("half")
    kinds = {kind["kind"] for kind in answered("info")["kinds"]}
    assert kinds == set(KINDS)
    names = [line.partition(": ")[0] for line in said("info").splitlines()]
    assert names[1:-2] == [KINDS[kind] for kind in sorted(kinds)]
    assert not any("unpackeds" in name for name in names)


def test_cache_list_command_shows_every_target(root: Path) -> None:
    (wheel,) = [entry for entry in answered("list") if entry["kind"] == "file"]
    assert wheel["sha256"] == sha256(WHEEL)
    assert wheel["label"] == "trl-0.18.2-py3-none-any.whl"
    assert (root / wheel["path"]).read_bytes() == WHEEL
    assert wheel["in_use"] is False
    lines = said("list").splitlines()
    assert len(lines) == 2
    assert any(line.split()[:2] == ["file", "1500"] and line.endswith(".whl") for line in lines)
    assert len(said("list", "-v").splitlines()) == 3


def test_cache_list_shows_used_entries(root: Path) -> None:
    user = Store.open(root)
    assert user.file(sha256(WHEEL))
    (wheel,) = [entry for entry in answered("list") if entry["kind"] == "file"]
    assert wheel["in_use"] is True
    user.release()


@pytest.mark.usefixtures("root")
def test_cache_prune_reduces_the_cache_to_the_requested_size() -> None:
    value = answered("prune", "--max-size", "300")
    assert value["freed"] >= 1500
    assert value["left"] <= 300
    assert "removed 0 entries" in said("prune", "--max-size", "300")


@pytest.mark.usefixtures("root")
def test_cache_prune_uses_the_size_limit_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(InputError, match="no maximum size is specified") as caught:
        said("prune")
    assert "IMGBUILD_CACHE_SIZE" in str(caught.value.hint)
    monkeypatch.setenv("IMGBUILD_CACHE_SIZE", "10G")
    assert answered("prune")["removed"] == 0
    assert answered("info")["limit"] == 10_000_000_000


@pytest.mark.usefixtures("root")
def test_cache_command_refuses_an_invalid_size() -> None:
    with pytest.raises(InputError, match="--max-size: invalid size 'big'"):
        said("prune", "--max-size", "big")


def test_cache_clear_removes_unused_entries(root: Path) -> None:
    assert answered("clear")["left"] == 0
    assert Store.open(root).file(sha256(WHEEL)) is None


def test_cache_verify_removes_damaged_entries(root: Path) -> None:
    assert answered("verify") == []
    assert said("verify") == ""
    path = Store.open(root).file(sha256(WHEEL))
    assert path is not None
    path.chmod(0o644)
    path.write_bytes(b"damaged")
    with pytest.raises(IntegrityError, match=r"1 damaged entry of .* removed"):
        said("verify")
    assert not path.exists()
    assert answered("verify") == []


@each_row(
    ("size", "text"), [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (3_940_000_000, "3.9 GB")]
)
def test_cache_sizes_have_units(size: int, text: str) -> None:
    assert size_text(size) == text
