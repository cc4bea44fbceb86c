"""Tests reading the libraries of a base from Debian packages."""

from __future__ import annotations

from pathlib import Path

import msgspec

from imgbuild.audit.packages.base import is_read, libraries_loaded_first, read_base, read_standalone
from imgbuild.audit.packages.library_map import LibraryMap
from imgbuild.cache.store import Store
from tests.support import debs, standalone_matrix
from tests.support.standalone_python import pack_archive, sample_entries

REAL = next(
    path for path in Path(msgspec.__file__ or "").parent.glob("*.so") if path.stat().st_size
)


def test_libraries_interpreter_and_links_of_a_base_are_read(tmp_path: Path, store: Store) -> None:
    data = REAL.read_bytes()
    path = tmp_path / "libs.deb"
    deb = debs.write_deb(
        path,
        "libs",
        [
            debs.file("./usr/lib/x86_64-linux-gnu/libone.so.1.2", data),
            debs.symlink("./usr/lib/x86_64-linux-gnu/libone.so.1", "libone.so.1.2"),
            debs.file("./lib/x86_64-linux-gnu/libtwo.so.6", data),
            debs.file("./usr/lib/x86_64-linux-gnu/perl/plugin.so", data),
            debs.file("./usr/lib/x86_64-linux-gnu/libscript.so", b"INPUT(libone.so.1)"),
            debs.file("./usr/bin/python3.11", data),
            debs.file("./usr/bin/tool", data),
        ],
    )
    base_libraries = read_base([deb], lambda _: path, store)
    assert sorted((facts.file.rpartition("/")[2], facts.machine) for facts in base_libraries) == [
        ("libone.so.1", "link"),
        ("libone.so.1.2", "x86_64"),
        ("libtwo.so.6", "x86_64"),
        ("python3.11", "x86_64"),
    ]
    package_set = LibraryMap([], base_libraries, "x86_64", {})
    assert (
        package_set.base_library("libone.so.1")
        == package_set.base_library("libone.so.1.2")
        is not None
    )
    assert package_set.base_library("libthree.so") is None
    assert package_set.defines_symbol("any", "PyInit__core")


def test_debian_package_of_a_base_is_read_only_once(tmp_path: Path, store: Store) -> None:
    path = tmp_path / "libs.deb"
    deb = debs.write_deb(path, "libs", [debs.file("./usr/lib/libone.so.1", REAL.read_bytes())])
    first = read_base([deb], lambda _: path, store)
    path.unlink()
    assert read_base([deb], lambda _: path, store) == first


def test_interpreter_archive_is_read_only_once(tmp_path: Path, store: Store) -> None:
    path, data = tmp_path / "archive", REAL.read_bytes()
    stdlib = "lib/python3.12/lib-dynload/_sqlite3.cpython-312-x86_64-linux-gnu.so"
    files = {
        "python/bin/python3.12": data,
        "python/lib/libunused.so.1": data,
        f"python/{stdlib}": data,
    }
    path.write_bytes(pack_archive({**sample_entries(), **files}))
    archive = standalone_matrix.archive()
    assert not is_read(archive, store)
    facts = read_standalone(archive, "3.12", lambda _: path, store)
    # Tk is not in the layer; its libraries are not read.
    assert sorted((each.file, each.machine) for each in facts) == [
        ("bin/python3.12", "x86_64"), ("lib/libunused.so.1", "x86_64"), (stdlib, "x86_64")
    ]  # fmt: skip
    loaded = libraries_loaded_first(facts, "3.12")
    assert [each.file for each in loaded] == ["bin/python3.12"]
    assert LibraryMap([], loaded, "x86_64", {}).defines_symbol("any", "PyInit__core")
    assert is_read(archive, store)
    path.unlink()
    assert read_standalone(archive, "3.12", lambda _: path, store) == facts
