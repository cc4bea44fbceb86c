from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from imgbuild.deb.libraries import (
    HEADER,
    compare_names,
    encode_cache,
    library_cache,
    library_folders,
    read_soname,
)
from imgbuild.deb.tree import DebTree
from imgbuild.oci.tar import LayerMember, MemberKind
from imgbuild.values import Arch
from tests.support import small_elf
from tests.support.rows import each_row

VERSION = "2.36-9+deb12u14"


def library(name: str) -> bytes:
    """A small shared object, with or without a SONAME."""
    return small_elf.elf_file(small_elf.SONAME, name)


def decoded(data: bytes) -> list[tuple[int, str, str]]:
    magic, count, size, flags, extension = HEADER.unpack_from(data)
    assert (magic, flags) == (b"glibc-ld.so.cache1.1", 2)
    assert struct.unpack_from("<I", data, extension) == (0xEAA42174,)
    assert 48 + 24 * count + size <= extension <= 48 + 24 * count + size + 3
    rows = []
    for number in range(count):
        kind, name, path, system, hardware = struct.unpack_from("<iIIIQ", data, 48 + 24 * number)
        assert (system, hardware) == (0, 0)
        texts = [data[place : data.index(b"\0", place)].decode() for place in (name, path)]
        rows.append((kind, *texts))
    return rows


def put(tree: DebTree, path: str, data: bytes) -> None:
    tree.add(LayerMember(path=path, size=len(data), content=data), "demo")


def root() -> DebTree:
    tree = DebTree()
    put(tree, "etc/ld.so.conf", b"# comment\ninclude /etc/ld.so.conf.d/*.conf\n")
    put(
        tree,
        "etc/ld.so.conf.d/z.conf",
        b"/lib/x86_64-linux-gnu  # ours\n/usr/lib/x86_64-linux-gnu\n",
    )
    put(tree, "etc/ld.so.conf.d/a.conf", b"/usr/local/lib\n")
    put(tree, "etc/ld.so.conf.d/ignored", b"/opt\n")
    for folder in ("usr", "usr/lib", "usr/lib/x86_64-linux-gnu", "usr/local/lib", "opt"):
        tree.add(LayerMember(path=folder, kind=MemberKind.FOLDER, mode=0o755), "demo")
    return tree


def names(tree: DebTree) -> list[tuple[str, str]]:
    data, _ = library_cache(tree, Arch.X86_64, VERSION)
    return [(name, path) for _, name, path in decoded(data)]


@each_row(
    ("low", "high"),
    [
        ("liba.so.9", "liba.so.10"),
        ("liba.so", "liba.so.1"),
        ("libz.so.1", "libzstd.so.1"),
        ("libstdc++.so.6", "libstdc1.so"),  # a digit sorts above every other character
        ("libB.so", "liba.so"),
    ],
)
def test_loader_cache_has_library_names_in_glibc_order(low: str, high: str) -> None:
    assert compare_names(low, high) < 0 < compare_names(high, low)
    assert compare_names(low, low) == 0


@given(st.text("ab.0129", max_size=8), st.text("ab.0129", max_size=8))
def test_comparison_of_library_names_is_antisymmetric(left: str, right: str) -> None:
    forward, other = compare_names(left, right), compare_names(right, left)
    assert (forward > 0) == (other < 0)
    assert (forward == 0) == (other == 0)


def test_soname_of_a_library_is_read() -> None:
    assert read_soname(library("libdemo.so.1")) == "libdemo.so.1"
    assert read_soname(library("")) == ""
    assert read_soname(b"/* GNU ld script */ GROUP ( libc.so.6 )") is None
    assert read_soname(library("libdemo.so.1")[:80]) is None


def test_library_folders_begin_with_the_configured_folders() -> None:
    assert library_folders(root(), Arch.X86_64) == ["usr/local/lib", "lib/x86_64-linux-gnu", "lib"]


def test_loader_cache_has_library_names() -> None:
    tree = root()
    place = "usr/lib/x86_64-linux-gnu"
    put(tree, f"{place}/libone.so.1.2", library("libone.so.1"))
    tree.add_link(f"{place}/libone.so.1", "libone.so.1.2")
    tree.add_link(f"{place}/libone.so", "libone.so.1")
    put(tree, f"{place}/libtwo.so", library(""))
    put(tree, f"{place}/libc.so", b"GROUP ( libc.so.6 )")  # a linker script
    put(tree, f"{place}/plugin.so", library("plugin.so"))  # not a library name
    tree.add_link(f"{place}/libgone.so.1", "libgone.so.1.0")
    put(tree, "usr/local/lib/libnine.so.9", library("libnine.so.9"))
    assert names(tree) == [
        ("libtwo.so", "/lib/x86_64-linux-gnu/libtwo.so"),
        ("libone.so.1", "/lib/x86_64-linux-gnu/libone.so.1"),
        ("libone.so", "/lib/x86_64-linux-gnu/libone.so"),
        ("libnine.so.9", "/usr/local/lib/libnine.so.9"),
    ]


def test_missing_link_for_a_soname_is_created() -> None:
    tree = root()
    put(tree, "usr/lib/libone.so.1.2", library("libone.so.1"))
    put(tree, "usr/lib/libone.so.1.10", library("libone.so.1"))
    data, links = library_cache(tree, Arch.X86_64, VERSION)
    assert [(link.path, link.target) for link in links] == [("lib/libone.so.1", "libone.so.1.10")]
    assert decoded(data) == [(0x0303, "libone.so.1", "/lib/libone.so.1")]


def test_loader_cache_has_flags_for_arm64() -> None:
    data = encode_cache([("liba.so.1", "/lib/liba.so.1")], Arch.ARM64, VERSION)
    assert decoded(data) == [(0x0A03, "liba.so.1", "/lib/liba.so.1")]


def test_string_table_of_the_loader_cache_shares_suffixes() -> None:
    data = encode_cache([("liba.so.1", "/lib/liba.so.1")], Arch.X86_64, VERSION)
    assert data.count(b"liba.so.1") == 1
    line = b"ldconfig (Debian GLIBC 2.36-9+deb12u14) stable release version 2.36"
    assert data.endswith(line)
