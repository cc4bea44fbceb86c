"""A downloaded database of OSV, and what is refused of it."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from imgbuild.cves.osv_database import OsvDatabase
from imgbuild.cves.records import LIMIT
from imgbuild.errors import ImgbuildError
from tests.support import advisories
from tests.support.advisories import HEADERS, OLD, REGEX, TORCH, debian, named, pypi, record

PACKAGES = (pypi("torch", "2.5.1"), pypi("vllm", "0.8.5.post1"), debian("openssl", OLD))
FOUND = [
    ("openssl", "CVE-2024-6119"),
    ("openssl", "DEBIAN-CVE-2024-6119"),
    ("torch", TORCH),
    ("vllm", HEADERS),
    ("vllm", REGEX),
]


def test_archives_of_ecosystems(tmp_path: Path) -> None:
    answer = OsvDatabase(advisories.database(tmp_path)).find(PACKAGES)
    assert named(answer.advisories) == FOUND
    assert answer.of.endswith("newest advisory of 2025-09-19")
    fixed = {one.ids[0]: one.fixed for one in answer.advisories}
    assert (fixed[TORCH], fixed["CVE-2024-6119"]) == ("2.6.0", "3.0.14-1~deb12u2")


def test_names_of_pypi_are_normalized(tmp_path: Path) -> None:
    shown = record(TORCH)
    shown["affected"][0]["package"]["name"] = "Jaraco.Context_X"
    (tmp_path / "shown.json").write_text(json.dumps(shown))
    (found,) = OsvDatabase(tmp_path).find([pypi("jaraco-context-x", "2.5.1")]).advisories
    assert (found.ids[0], found.fixed) == (TORCH, "2.6.0")


def test_names_of_debian_are_not(tmp_path: Path) -> None:
    shown = record(advisories.OPENSSL)
    for entry in shown["affected"]:
        entry["package"]["name"] = "open.ssl"
    (tmp_path / "shown.json").write_text(json.dumps(shown))
    assert OsvDatabase(tmp_path).find([debian("open-ssl", OLD)]).advisories == ()


def test_a_folder_of_documents_and_one_archive(tmp_path: Path) -> None:
    for name in advisories.ALL:
        (tmp_path / f"{name}.json").write_text(json.dumps(record(name)))
    assert named(OsvDatabase(tmp_path).find(PACKAGES).advisories) == FOUND
    archive = advisories.database(tmp_path / "other") / "PyPI/all.zip"
    assert named(OsvDatabase(archive).find(PACKAGES[:2]).advisories) == FOUND[2:]


def test_beside_archives_no_other_document_is_read(tmp_path: Path) -> None:
    place = advisories.database(tmp_path)
    (place / "tracker.json").write_bytes(advisories.TRACKER.read_bytes())
    assert named(OsvDatabase(place).find(PACKAGES).advisories) == FOUND


def test_a_database_without_the_ecosystem_is_no_answer(tmp_path: Path) -> None:
    place = advisories.database(tmp_path, (TORCH,))
    with pytest.raises(ImgbuildError, match="has no advisory for Debian:12") as error:
        OsvDatabase(place).find(PACKAGES)
    assert "PyPI" in (error.value.hint or "")


def test_what_cannot_be_compared_is_said(tmp_path: Path) -> None:
    bad = record(REGEX)
    bad["affected"][0]["ranges"][0]["events"][1]["fixed"] = "soon"
    (tmp_path / "bad.json").write_text(json.dumps(bad))
    answer = OsvDatabase(tmp_path).find(PACKAGES[1:2])
    assert answer.advisories == ()
    assert [one.text for one in answer.unread] == [f"{REGEX} about vllm: Invalid version: 'soon'"]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"{", "Input data was truncated"),
        (b"[]", "Expected `object`, got `array`"),
        (b'{"id": 7}', "Expected `str`, got `int`"),
        (b'{"id": "../x"}', "its id is '../x'"),
        (b'{"id": "A-1", "affected": [{"package": 1}]}', "Expected `object | null`, got `int`"),
        (b'{"id": "A-1", "affected": {}}', "Expected `array | null`, got `object`"),
        (b'{"id": "A-1", "aliases": [1]}', "Expected `str`, got `int`"),
        (b'{"id": "A-1", "database_specific": ' + b'{"a":' * 100_000, "nested too deeply"),
        (b"\xff", "invalid"),
    ],
)
def test_documents_that_are_no_advisories(tmp_path: Path, data: bytes, said: str) -> None:
    (tmp_path / "bad.json").write_bytes(data)
    with pytest.raises(ImgbuildError) as error:
        OsvDatabase(tmp_path).find(PACKAGES)
    text = " ".join((error.value.message, *map(str, getattr(error.value, "problems", ()))))
    assert "bad.json" in text
    assert said.lower() in text.lower()
    assert error.value.hint


def test_archives_that_cannot_be_read(tmp_path: Path) -> None:
    place = tmp_path / "all.zip"
    place.write_bytes(b"PK, but no archive")
    with pytest.raises(ImgbuildError, match=r"all\.zip is neither a zip archive nor"):
        OsvDatabase(place).find(PACKAGES)
    with zipfile.ZipFile(place, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("A-1.json", b" " * (LIMIT + 1))
    with pytest.raises(ImgbuildError, match=rf"A-1\.json has {LIMIT + 1} bytes"):
        OsvDatabase(place).find(PACKAGES)
    whole = (advisories.database(tmp_path) / "PyPI/all.zip").read_bytes()
    place.write_bytes(whole[:60] + bytes(40) + whole[100:])
    with pytest.raises(ImgbuildError, match=r"all\.zip: .*cannot be read"):
        OsvDatabase(place).find(PACKAGES)
    with pytest.raises(ImgbuildError, match="no such file"):
        OsvDatabase(tmp_path / "absent").find(PACKAGES)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ImgbuildError, match=r"neither \.zip nor \.json"):
        OsvDatabase(tmp_path / "empty").find(PACKAGES)
