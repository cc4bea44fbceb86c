"""Tests the bundled facts about wheels and Debian packages that are not downloaded."""

import _ctypes
from array import array
from pathlib import Path

import msgspec
import pytest

from imgbuild.audit.packages.library import Library
from imgbuild.audit.packages.published import (
    DEBS,
    METADATA,
    DebFacts,
    InstalledDifference,
    PublishedFacts,
    absolute_lines,
    decode_elf_facts,
    elf_lists,
    metadata_headers,
    package_facts,
    relative_lines,
)
from imgbuild.audit.source.facts import ElfFacts, GpuCode
from imgbuild.audit.source.module import read_module
from imgbuild.cache import facts_file
from imgbuild.cache.facts_file import FactsFile, write_facts
from imgbuild.cache.store import Store
from imgbuild.errors import IntegrityError
from tests.support import audited, wheels

FILES: audited.Files = {
    "demo/__init__.py": "from demo.a import one\nimport sys\n",
    "demo/a.py": "def one(x):\n    return x\n",
    "demo/b.py": "one_more = 1\n",
    "demo/other_python.py": "def two(x:\n",
    "demo/_c.cpython-311-x86_64-linux-gnu.so": b"\0" * 100,
}
NEWER: audited.Files = {**FILES, "demo/a.py": "def one(y):\n    return y\n"}
LIBRARY = ElfFacts(
    file="demo/lib.so",
    machine="x86_64",
    needed=("libc.so.6",),
    undefined=("malloc@GLIBC_2.2.5", "free"),
    defined=array("Q", sorted([3, 1 << 39, (1 << 63) + 5])).tobytes(),
    gpu=(GpuCode("sm_90"),),
)


MODULE = """\
import a, b
class One:
    x: int = 1
    y: int = a.f(x, z=b.c)
def two(): return a.g()
def three(): raise ValueError
"""


def audited_module(source):
    return read_module(source.encode(), "demo", "demo.py", package=False)


def raw(facts):
    return msgspec.Raw(msgspec.msgpack.encode(facts))


def read_wheel(folder, version, files):
    wheel, path = audited.wheel(folder, "demo", version, files)
    store = Store.open(folder / f"cache-{version}")
    with Library(store) as library:  # modules and mentions are kept when it is closed
        library_wheel = library.wheel(wheel, path)
        for module in library_wheel.modules("3.11"):
            library_wheel.module(module)
        library_wheel.elf_facts()
        library_wheel.read(["demo/a.py"])
        library_wheel.mentioning("demo", "one")
        _ = library_wheel.imports
    with Library(store) as library:
        facts = library.wheel(wheel, path).stored_facts()
    path.unlink()
    return wheel, path, facts


@pytest.fixture
def published(tmp_path):
    return [read_wheel(tmp_path, "1.0", FILES), read_wheel(tmp_path, "2.0", NEWER)]


def entries_of(published):
    facts = {wheel.sha256: facts for wheel, _, facts in published}
    metadata = {
        wheel.sha256: wheels.minimal_metadata("demo", wheel.version) for wheel, _, _ in published
    }
    return {
        "wheels/demo": msgspec.msgpack.encode(package_facts(facts)),
        METADATA: msgspec.msgpack.encode(dict(sorted(metadata.items()))),
        DEBS: msgspec.msgpack.encode(DebFacts(("d" * 64,), elf_lists([(LIBRARY,)]))),
    }


@pytest.fixture
def archive(tmp_path, published):
    path = tmp_path / "facts" / "published.zip"
    write_facts(path, entries_of(published))
    return path


def opened(tmp_path, archive):
    published = PublishedFacts(FactsFile.open(archive))
    return Library(Store.open(tmp_path / "empty"), published=published)


def test_published_facts_are_used_instead_of_reading_the_wheel(tmp_path, published, archive):
    library = opened(tmp_path, archive)
    for (wheel, path, _), argument in zip(published, ("x", "y"), strict=True):
        library_wheel = library.wheel(wheel, path)
        assert library_wheel.metadata.version == wheel.version
        assert library_wheel.elf_facts() == ()
        facts = library_wheel.module("demo.a")
        assert facts is not None
        assert [parameter.name for parameter in facts.functions[0].parameters] == [argument]
        assert library_wheel.read(["demo/a.py"])["demo/a.py"].startswith(b"def one(")
        assert library_wheel.imports["demo"] == ("demo", "sys")
        assert library_wheel.mentioning("demo", "one") == ("demo.a", "demo.b")


def test_facts_about_generated_code_extras_and_loaded_libraries_are_published(
    tmp_path, monkeypatch
):
    gencode = "f.ValidateProtobufRuntimeVersion(\n  D.PUBLIC,\n  7, 36, 1, '', 'x.proto')\n"
    advice = "try:\n  import x\nexcept ImportError:\n  raise OSError('pip install demo[x]')\n"
    loader = Path(_ctypes.__file__).read_bytes() + b"\0libcudart.so\0"
    files: audited.Files = {
        "demo/__init__.py": advice,
        "demo/model_pb2.py": gencode,
        "demo/_c.so": loader,
    }
    wheel, path = audited.wheel(tmp_path, "demo", "1.0", files)
    store = Store.open(tmp_path / "cache")

    def _small(library_wheel):
        return library_wheel.generated_code, library_wheel.advised_extras, library_wheel.loaded

    with Library(store) as library:
        read = _small(library.wheel(wheel, path))
        library.wheel(wheel, path).elf_facts()
        stored = library.wheel(wheel, path).stored_facts()
    small = {kind: store.fact(kind, wheel.sha256) for kind in facts_file.KINDS[-3:]}
    entries = entries_of([(wheel, path, stored)])
    entries |= {kind: msgspec.msgpack.encode({wheel.sha256: data}) for kind, data in small.items()}
    archive = tmp_path / "facts.zip"
    write_facts(archive, entries)
    path.unlink()
    monkeypatch.setattr("imgbuild.cache.store.installed_facts", lambda: FactsFile.open(archive))
    generated, advised, loaded = _small(opened(tmp_path, archive).wheel(wheel, path))
    assert (generated, advised, loaded) == read
    assert [(code.file, code.line, code.version) for code in generated] == [
        ("demo/model_pb2.py", 1, (7, 36, 1))
    ]
    assert [(each.file, each.line, each.extra) for each in advised] == [
        ("demo/__init__.py", 3, "x")
    ]
    assert "libcudart.so" in loaded["demo/_c.so"]


def test_facts_of_modules_with_syntax_errors_are_not_published(tmp_path, published, archive):
    wheel, path, facts = published[0]
    assert set(facts.modules) == {"demo", "demo.a", "demo.b"}
    with pytest.raises(IntegrityError):
        opened(tmp_path, archive).wheel(wheel, path).module("demo.other_python")


def test_facts_that_are_not_published_are_read_from_the_wheel(tmp_path, published, archive):
    wheel, path, _ = published[0]
    library_wheel = opened(tmp_path, archive).wheel(wheel, path)
    with pytest.raises(IntegrityError):
        library_wheel.read(["demo/b.py"])
    with pytest.raises(IntegrityError):
        library_wheel.mentioning("demo", "two")


def test_encoding_of_published_facts_is_independent_of_the_order(tmp_path, published, archive):
    again = tmp_path / "again.zip"
    write_facts(again, dict(reversed(entries_of(published[::-1]).items())))
    assert again.read_bytes() == archive.read_bytes()


def test_published_facts_in_a_different_format_are_ignored(archive, monkeypatch):
    assert len(FactsFile.open(archive)) == 3
    monkeypatch.setattr(facts_file, "FORMAT", facts_file.FORMAT + 1)
    assert len(FactsFile.open(archive)) == 0


def test_missing_facts_file_is_treated_as_empty(tmp_path):
    facts = PublishedFacts(FactsFile.open(tmp_path / "absent.zip"))
    assert facts.wheel("demo", "0" * 64) is None
    assert facts.elf_facts("demo", "0" * 64) is None
    assert facts.deb_libraries("0" * 64) is None


def test_damaged_facts_file_is_ignored_or_gives_equal_facts(tmp_path, published, archive):
    whole = archive.read_bytes()
    sha256 = published[0][0].sha256
    right = PublishedFacts(FactsFile.open(archive)).wheel("demo", sha256)
    damaged = tmp_path / "damaged.zip"
    for place in range(0, len(whole), 31):
        damaged.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        assert PublishedFacts(FactsFile.open(damaged)).wheel("demo", sha256) in (None, right)
    damaged.write_bytes(whole[: len(whole) // 2])
    assert len(FactsFile.open(damaged)) == 0


def test_facts_that_several_versions_share_are_stored_once(published):
    facts = package_facts({wheel.sha256: facts for wheel, _, facts in published})
    assert [name for name, _, _ in facts.modules] == ["demo", "demo.a", "demo.a", "demo.b"]
    both = next(group for group in facts.files if group.wheels == (0, 1))
    assert {"demo/__init__.py", "demo/b.py"} <= set(both.paths)
    assert "demo/a.py" not in both.paths


def test_symbol_hashes_are_truncated_to_40_bits():
    (elf_facts,) = decode_elf_facts(elf_lists([(LIBRARY,)]))
    assert elf_facts is not None
    assert elf_facts[0].undefined == ("free", "malloc@GLIBC_2.2.5")
    assert array("Q", elf_facts[0].defined).tolist() == [3, 5, 1 << 39]
    rest = msgspec.structs.replace(LIBRARY, undefined=(), defined=b"")
    assert msgspec.structs.replace(elf_facts[0], undefined=(), defined=b"") == rest


def test_unread_file_is_distinguished_from_a_file_without_libraries():
    assert decode_elf_facts(elf_lists([None, (), (LIBRARY,)]))[:2] == (None, ())


def test_facts_about_debian_libraries_are_published(archive):
    published = PublishedFacts(FactsFile.open(archive))
    libraries = published.deb_libraries("d" * 64)
    assert libraries is not None
    assert [facts.file for facts in libraries] == ["demo/lib.so"]


def test_installed_files_are_the_wheel_members_with_differences_applied(published):
    _, _, facts = published[0]
    difference = InstalledDifference(
        keys=("/opt/venv 3.11",),
        added=(("../../../bin/demo", 7, 70),),
        absent=("demo/_c.cpython-311-x86_64-linux-gnu.so",),
    )
    facts = msgspec.structs.replace(facts, installed=(difference,))
    files = facts.installed_files("/opt/venv 3.11")
    assert files is not None
    paths = [path for path, _, _ in files]
    assert paths[0] == "../../../bin/demo"
    assert "demo/a.py" in paths
    assert difference.absent[0] not in paths
    assert facts.installed_files("/opt/venv 3.13") is None


def test_published_metadata_omits_the_description():
    head = b"Metadata-Version: 2.1\nName: demo\nLicense: a\n  b\n"
    assert metadata_headers(head + b"\nName: no\n") == head
    windows = head.replace(b"\n", b"\r\n")
    assert metadata_headers(windows + b"\r\ntext") == windows


def test_line_numbers_of_a_module_are_stored_as_differences(published):
    _, _, facts = published[0]
    moved = audited_module("\n\n" + MODULE)
    module = audited_module(MODULE)
    assert absolute_lines(relative_lines(raw(module))) == module
    assert absolute_lines(relative_lines(raw(moved))) == moved
    first, second = (msgspec.msgpack.decode(relative_lines(raw(each))) for each in (module, moved))
    assert first["functions"][1:] == second["functions"][1:]
    assert facts.module("demo.a") is not None
