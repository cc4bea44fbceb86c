"""Tests that the facts of a wheel are read once, cached by hash and shared by processes."""

import pytest

from imgbuild.audit.packages.library import Library
from imgbuild.audit.packages.reading import find_modules, module_name, parse_metadata
from imgbuild.errors import FetchFailed, IntegrityError
from imgbuild.http.client import HttpClient
from tests.support import audited, wheels
from tests.support.servers import FileSite, serve_site
from tests.unit.cache.test_transfer import Recorder

FILES: audited.Files = {
    "demo/__init__.py": "from demo.a import one\n",
    "demo/a.py": "def one(x):\n    return x\n",
    "demo/b.py": "B = 1\n",
    "demo/_c.cpython-311-x86_64-linux-gnu.so": b"\0" * 100,
}


@pytest.fixture
def demo(tmp_path):
    return audited.wheel(tmp_path, "demo", "1.0", FILES, metadata="Requires-Dist: numpy>=1\n")


def test_library_returns_files_metadata_and_modules_of_a_wheel(store, demo):
    library_wheel = Library(store).wheel(*demo)
    assert library_wheel.files["demo/b.py"] == 6
    assert library_wheel.metadata.requires == ("numpy>=1",)
    assert library_wheel.modules("3.11")["demo._c"] == "demo/_c.cpython-311-x86_64-linux-gnu.so"
    facts = library_wheel.module("demo.a")
    assert facts is not None
    assert [function.name for function in facts.functions] == ["one"]
    assert library_wheel.module("demo._c") is None
    assert library_wheel.module("demo.absent") is None


def test_cached_facts_of_a_wheel_are_not_read_again(store, demo):
    with Library(store) as library:
        library.wheel(*demo).module("demo.a")
    demo[1].unlink()
    later = Library(store).wheel(*demo)
    assert later.module("demo.a") is not None
    assert later.metadata.name == "demo"
    with pytest.raises(IntegrityError):
        later.module("demo.b")


def test_concurrently_saved_facts_of_a_wheel_are_all_kept(store, demo):
    first, second = Library(store), Library(store)
    first.wheel(*demo).module("demo.a")
    second.wheel(*demo).module("demo.b")
    first.save()
    second.save()
    demo[1].unlink()
    later = Library(store).wheel(*demo)
    assert later.module("demo.a") is not None
    assert later.module("demo.b") is not None


def test_changed_reader_code_invalidates_cached_facts(store, demo, monkeypatch):
    with Library(store) as library:
        library.wheel(*demo).module("demo.a")
    demo[1].unlink()
    monkeypatch.setattr("imgbuild.audit.packages.library.reader_version", lambda: "others")
    with pytest.raises(IntegrityError):
        Library(store).wheel(*demo).module("demo.a")


def test_wheel_is_read_again_if_its_cached_facts_are_damaged(store, demo):
    with Library(store) as library:
        library.wheel(*demo).module("demo.a")
    for path in (store.root / "facts").rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[:-1])
    assert Library(store).wheel(*demo).module("demo.a") is not None


def test_facts_of_a_remote_wheel_are_not_used_for_a_local_wheel(store, demo):
    wheel, path = demo
    data = path.read_bytes()
    with (
        serve_site(FileSite(files={wheel.file: data})) as site,
        Library(store, HttpClient()) as library,
    ):
        assert library.wheel(wheel, site.url(wheel.file)).module("demo.a") is not None
    assert Library(store).wheel(wheel, site.url(wheel.file)).module("demo.a") is not None
    path.unlink()
    with pytest.raises(IntegrityError):
        Library(store).wheel(wheel, path).module("demo.a")
    with pytest.raises(FetchFailed):
        Library(store).wheel(wheel, site.url(wheel.file)).module("demo.b")


def test_facts_of_a_remote_wheel_are_used_besides_those_of_the_local_wheel(store, demo):
    wheel, path = demo
    with Library(store) as library:
        library.wheel(wheel, path).module("demo.a")
    with (
        serve_site(FileSite(files={wheel.file: path.read_bytes()})) as site,
        Library(store, HttpClient()) as library,
    ):
        library.wheel(wheel, site.url(wheel.file)).module("demo.b")
    later = Library(store).wheel(wheel, site.url(wheel.file))
    assert later.module("demo.a") is not None
    assert later.module("demo.b") is not None


def test_small_files_of_a_wheel_are_cached(store, demo):
    assert Library(store).wheel(*demo).read(["demo/b.py", "demo/none"]) == {"demo/b.py": b"B = 1\n"}
    demo[1].unlink()
    assert Library(store).wheel(*demo).read(["demo/b.py"]) == {"demo/b.py": b"B = 1\n"}


def test_module_names_are_derived_from_paths():
    assert module_name("a/b/c.py") == "a.b.c"
    assert module_name("a/__init__.py") == "a"
    assert module_name("six.py") == "six"
    assert module_name("demo-1.0.data/purelib/a/b.py") == "a.b"
    assert module_name("demo-1.0.data/scripts/run.py") is None
    assert module_name("a/_c.abi3.so") == "a._c"
    assert module_name("a/some-tool/b.py") is None
    assert module_name("a/data.json") is None


def test_package_folder_precedes_extension_module_and_source_file():
    files = ["a/b.py", "a/b.abi3.so", "c.so", "c/__init__.py"]
    assert find_modules(files) == {"a.b": "a/b.abi3.so", "c": "c/__init__.py"}
    assert find_modules(reversed(files)) == find_modules(files)


def test_requirements_of_the_metadata_have_line_numbers():
    lines = ["Name: x", "Requires-Python: >=3.9", "Requires-Dist: a", "  >=1", "Provides-Extra: e"]
    metadata = parse_metadata("\n".join(lines))
    assert metadata.requires == ("a >=1",)
    assert metadata.requires_python == ">=3.9"
    assert metadata.extras == ("e",)
    assert (metadata.lines, metadata.python_line) == ((3,), 2)


def test_metadata_lines_after_the_headers_are_not_read():
    text = "Name: x\r\nrequires-dist: a\r\nRequires-Dist: b\r\n\r\nRequires-Dist: no\r\n"
    metadata = parse_metadata(text)
    assert metadata.requires == ("a", "b")
    assert metadata.lines == (2, 3)
    assert metadata.python_line == 0


def test_inconsistent_metadata_lines_are_dropped():
    metadata = parse_metadata("Name: x\nno header\nRequires-Dist: b\nRequires-Python: >=3\n")
    assert (metadata.requires, metadata.lines) == ((), ())
    assert (metadata.requires_python, metadata.python_line) == ("", 0)


def test_two_metadata_files_are_rejected(tmp_path, store):
    files = {"other-1.dist-info/METADATA": wheels.minimal_metadata("other", "1")}
    wheel, path = audited.wheel(tmp_path, "demo", "1.0", files)
    with pytest.raises(IntegrityError, match=r"one \.dist-info/METADATA, found 2"):
        _ = Library(store).wheel(wheel, path).index


def test_progress_bar_counts_each_read_package_once(store, demo, tmp_path):
    other = audited.wheel(tmp_path, "other", "1.0", {"other/a.py": "A = 1\n"})
    seen = Recorder()
    with Library(store) as library:
        with library.progress("auditing", 2, seen):
            library_wheel = library.wheel(*demo)
            library_wheel.module("demo.a")
            library_wheel.module("demo.b")
            library_wheel.elf_facts()
            assert seen.done == 1
            library.prefetch_elf_facts([library.wheel(*other)])
            assert seen.done == 2
        library.wheel(*other).module("other.a")
    assert (seen.bars, seen.units, seen.done) == ([(0, 2)], ["packages read"], 2)
