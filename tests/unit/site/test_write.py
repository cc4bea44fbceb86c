"""Tests replacing the folder of a site, its size, and escaping hostile texts."""

from __future__ import annotations

import html
import json
from pathlib import Path

import msgspec
import pytest

from imgbuild.errors import InputError
from imgbuild.site import pages, write
from imgbuild.site.catalogue import SiteSources
from imgbuild.site.model import SiteCatalogue
from imgbuild.system.control_characters import escape_control
from imgbuild.system.folder import OpenFolder
from tests.support.site_history import HISTORY


def make(
    sources: SiteSources, example_site: SiteCatalogue, output: Path, *, documents: bool = False
) -> write.WrittenSite:
    return write.write_site(sources, example_site, HISTORY, output, documents=documents)


@pytest.fixture
def small(example_site: SiteCatalogue) -> SiteCatalogue:
    """A catalogue of one target, which is quick to write."""
    chosen = tuple(each for each in example_site.targets if each.name == "cu124-vllm")
    alone = msgspec.structs.replace(chosen[0], debian=())
    return msgspec.structs.replace(example_site, targets=(alone,), debian=())


def test_site_is_within_the_size_limit(
    sources: SiteSources, example_site: SiteCatalogue, tmp_path: Path
) -> None:
    site = make(sources, example_site, tmp_path / "site")
    sizes = {
        path.relative_to(site.output).as_posix(): path.stat().st_size
        for path in site.output.rglob("*")
        if path.is_file()
    }
    assert max(size for name, size in sizes.items() if name.endswith(".html")) == site.largest
    assert site.largest <= 100_000
    counted = [name for name in sizes if not name.startswith((*write.DOCUMENTS, write.MARKER))]
    assert sum(sizes[name] for name in counted) == site.bytes < 1_000_000
    assert site.pages == sum(name.endswith(".html") for name in sizes)


def test_new_site_replaces_an_earlier_site(
    sources: SiteSources, small: SiteCatalogue, tmp_path: Path
) -> None:
    output = tmp_path / "new" / "site"
    make(sources, small, output, documents=True)
    assert json.loads((output / "locks/cu124-vllm.json").read_text())["target"] == "cu124-vllm"
    assert (output / "sbom/cu124-vllm-x86_64.cdx.json").exists()
    assert "href=../sbom/" in (output / "targets/cu124-vllm.html").read_text()
    make(sources, small, output)
    assert not (output / "locks").exists()
    assert [path.name for path in output.parent.iterdir()] == ["site"]


def test_site_can_be_written_to_an_empty_folder(
    sources: SiteSources, small: SiteCatalogue, tmp_path: Path
) -> None:
    (tmp_path / "site").mkdir()
    make(sources, small, tmp_path / "site")
    assert (tmp_path / "site/index.html").exists()


def test_site_is_not_written_to_a_folder_with_other_files(
    sources: SiteSources, small: SiteCatalogue, tmp_path: Path
) -> None:
    output = tmp_path / "site"
    output.mkdir()
    (output / "thesis.tex").write_text("years")
    for check in (lambda: make(sources, small, output), lambda: write.require_replaceable(output)):
        with pytest.raises(InputError, match="was not written by imgbuild"):
            check()
    (output / "thesis.tex").unlink()
    make(sources, small, output)
    (output / "targets" / "CNAME").write_text("own.example")
    with pytest.raises(InputError, match="did not write: targets/CNAME"):
        make(sources, small, output)
    assert (output / "targets/CNAME").read_text() == "own.example"
    (output / write.MARKER).write_text('{"site": 2}')
    with pytest.raises(InputError, match=write.MARKER):
        make(sources, small, output)


def test_site_is_not_written_through_links(
    sources: SiteSources, small: SiteCatalogue, tmp_path: Path
) -> None:
    real = tmp_path / "real"
    make(sources, small, real)
    link = tmp_path / "link"
    link.symlink_to(real)
    with pytest.raises(InputError, match="symbolic link"):
        make(sources, small, link)
    (real / "targets/inner").symlink_to(tmp_path)
    with pytest.raises(InputError, match="symbolic link"):
        make(sources, small, real)
    (real / "targets/inner").unlink()
    (real / write.MARKER).unlink()
    (real / write.MARKER).symlink_to(real / "index.html")
    with pytest.raises(InputError, match="symbolic link"):
        make(sources, small, real)


def test_interrupted_replacement_restores_the_old_site(
    sources: SiteSources, small: SiteCatalogue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "site"
    make(sources, small, output)
    before = (output / "index.html").stat().st_ino
    rename, calls = OpenFolder.rename_folder, []

    def interrupted(folder: OpenFolder, name: str, other: str) -> None:
        calls.append(name)
        if len(calls) == 2:
            raise KeyboardInterrupt
        rename(folder, name, other)

    monkeypatch.setattr(OpenFolder, "rename_folder", interrupted)
    with pytest.raises(KeyboardInterrupt):
        make(sources, small, output)
    assert (output / "index.html").stat().st_ino == before
    assert [path.name for path in tmp_path.iterdir()] == ["site"]


def test_hostile_texts_on_written_pages_are_escaped(example_site: SiteCatalogue) -> None:
    evil = "<script>alert(1)</script>\"' onload=x {{ 7 * 7 }} {% raw %} \u202e\u2066\u200b\x07"
    chosen = next(each for each in example_site.targets if each.name == "cu124-vllm0.7.2")
    row = msgspec.structs.replace(
        chosen.row, summary=evil, retired=evil, tested=evil, exclude={"arm64": evil}
    )
    hostile = msgspec.structs.replace(chosen, row=row, stale=evil, learned=(evil,))
    refusal = msgspec.structs.replace(example_site.refusals[0], what=evil, reason=evil)
    targets = tuple(hostile if each is chosen else each for each in example_site.targets)
    changed = msgspec.structs.replace(
        example_site, title=evil, targets=targets, refusals=(refusal, *example_site.refusals[1:])
    )
    texts = {
        path: data.decode()
        for path, data in pages.site_pages(changed, HISTORY)
        if path.endswith(".html")
    }
    for text in texts.values():
        assert "<script>alert" not in text
        assert "\"' onload" not in text
        assert "{{ 7 * 7 }}" in text
        assert not [each for each in "\u202e\u2066\u200b\x07" if each in text]
    page = html.unescape(texts["targets/cu124-vllm0.7.2.html"])
    assert page.count(escape_control(evil)) >= 5
