"""The facts that come with imgbuild: they stand for wheels that were never here."""

import zipfile

import pytest

from imgbuild.audit.packages import published
from imgbuild.audit.packages.library import ELF_FACTS, INDEX, Library
from imgbuild.audit.packages.published import PublishedFacts, write_facts
from imgbuild.cache.store import Store
from imgbuild.errors import IntegrityError
from tests.support import audited

FILES: audited.Files = {
    "demo/__init__.py": "from demo.a import one\n",
    "demo/a.py": "def one(x):\n    return x\n",
    "demo/other_python.py": "def two(x:\n",
    "demo/_c.cpython-311-x86_64-linux-gnu.so": b"\0" * 100,
}
NEWER: audited.Files = {**FILES, "demo/a.py": "def one(y):\n    return y\n"}


def read_wheel(folder, version, files):
    """A wheel of demo that was read in a cache of its own, and what is to be published of it."""
    wheel, path = audited.wheel(folder, "demo", version, files)
    with Library(Store.open(folder / f"cache-{version}")) as library:
        library_wheel = library.wheel(wheel, path)
        for module in library_wheel.modules("3.11"):
            library_wheel.module(module)
        library_wheel.elf_facts()
    with Library(Store.open(folder / f"cache-{version}")) as library:
        facts = library.wheel(wheel, path).stored_facts()
    path.unlink()
    return wheel, path, facts


@pytest.fixture
def wheels(tmp_path):
    return [read_wheel(tmp_path, "1.0", FILES), read_wheel(tmp_path, "2.0", NEWER)]


@pytest.fixture
def archive(tmp_path, wheels):
    path = tmp_path / "facts" / "wheels.zip"
    write_facts(path, {wheel.sha256: facts for wheel, _, facts in wheels})
    return path


def opened(tmp_path, archive):
    """A library with an empty cache and the facts of `archive`."""
    return Library(Store.open(tmp_path / "empty"), published=PublishedFacts.open(archive))


def test_published_facts_stand_for_the_wheel(tmp_path, wheels, archive):
    library = opened(tmp_path, archive)
    for (wheel, path, _), argument in zip(wheels, ("x", "y"), strict=True):
        library_wheel = library.wheel(wheel, path)
        assert library_wheel.metadata.version == wheel.version
        assert library_wheel.elf_facts() == ()
        facts = library_wheel.module("demo.a")
        assert facts is not None
        assert [parameter.name for parameter in facts.functions[0].parameters] == [argument]


def test_what_another_python_may_parse_is_not_published(tmp_path, wheels, archive):
    wheel, path, facts = wheels[0]
    assert set(facts.modules) == {"demo", "demo.a"}
    with pytest.raises(IntegrityError):
        opened(tmp_path, archive).wheel(wheel, path).module("demo.other_python")


def test_the_same_facts_are_the_same_bytes_in_any_order(tmp_path, wheels, archive):
    again = tmp_path / "again.zip"
    write_facts(again, {wheel.sha256: facts for wheel, _, facts in reversed(wheels)})
    assert again.read_bytes() == archive.read_bytes()


def test_facts_that_other_code_read_are_not_used(wheels, archive, monkeypatch):
    assert PublishedFacts.open(archive).fact(INDEX, wheels[0][0].sha256) is not None
    monkeypatch.setattr(published, "reader_digest", lambda: b"other code")
    assert len(PublishedFacts.open(archive)) == 0


def test_without_a_file_nothing_is_published(tmp_path):
    facts = PublishedFacts.open(tmp_path / "absent.zip")
    assert facts.fact(ELF_FACTS, "0" * 64) is None
    assert facts.modules("demo", "0" * 64) == {}


def test_damaged_facts_are_none_or_the_same(tmp_path, wheels, archive):
    whole = archive.read_bytes()
    sha256 = wheels[0][0].sha256
    facts = PublishedFacts.open(archive)
    right = (facts.fact(INDEX, sha256), facts.modules("demo", sha256))
    damaged = tmp_path / "damaged.zip"
    for place in range(0, len(whole), 31):
        damaged.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        facts = PublishedFacts.open(damaged)
        assert facts.fact(INDEX, sha256) in (None, right[0])
        assert facts.modules("demo", sha256) in ({}, right[1])
    damaged.write_bytes(whole[: len(whole) // 2])
    assert len(PublishedFacts.open(damaged)) == 0


def test_the_newest_version_adds_only_what_changed(archive):
    with zipfile.ZipFile(archive) as file:
        names = file.namelist()
    assert names.count("modules/demo") == 1
    assert sum(name.startswith(f"{INDEX}/") for name in names) == 2
