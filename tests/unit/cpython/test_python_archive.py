"""Tests reading archives of a standalone Python, and which archives are refused."""

from __future__ import annotations

import re
import tarfile
from pathlib import Path

import pytest

from imgbuild.cpython import python_archive
from imgbuild.errors import IntegrityError
from imgbuild.oci.layer import write_layer
from imgbuild.oci.tar import LayerMember, MemberKind
from imgbuild.values import Arch
from tests.support import small_elf
from tests.support.rows import each_row
from tests.support.standalone_python import ELF, SYSCONFIG, Entry, pack_archive, sample_entries

LABEL = "cpython-3.12.11-install_only.tar.gz"


def written(folder: Path, entries: dict[str, Entry]) -> Path:
    path = folder / "archive"
    path.write_bytes(pack_archive(entries))
    return path


def described(folder: Path, entries: dict[str, Entry], arch: Arch = Arch.X86_64) -> str:
    path = written(folder, entries)
    return python_archive.describe_archive(path, LABEL, python="3.12", arch=arch).version


def layer(folder: Path, entries: dict[str, Entry]) -> dict[str, LayerMember]:
    path = written(folder, entries)
    members = python_archive.archive_members(
        path, LABEL, prefix="/opt/python", python="3.12", spool=folder / "spool"
    )
    return {member.path.removeprefix("opt/python/"): member for member in members}


def text(member: LayerMember) -> str:
    assert isinstance(member.content, bytes)
    assert len(member.content) == member.size
    return member.content.decode()


def special(kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo()
    info.type, info.linkname = kind, target
    return info


def test_exact_python_version_is_read_from_the_headers(tmp_path):
    assert described(tmp_path, sample_entries()) == "3.12.11"
    assert described(tmp_path, sample_entries(patch="3.12.0rc2")) == "3.12.0rc2"


def test_standalone_python_layer_excludes_tests_bytecode_pip_and_tk(tmp_path):
    assert sorted(layer(tmp_path, sample_entries())) == [
        "bin/python",
        "bin/python3",
        "bin/python3.12",
        "bin/python3.12-config",
        "include/python3.12/Python.h",
        "include/python3.12/patchlevel.h",
        "lib/libpython3.so",
        "lib/pkgconfig/python3.pc",
        "lib/python3.12/LICENSE.txt",
        f"lib/python3.12/{SYSCONFIG}",
        "lib/python3.12/os.py",
    ]


def test_standalone_python_layer_has_constant_modes_owners_and_times(tmp_path):
    entries = sample_entries()
    program = special(tarfile.REGTYPE)
    program.mode, program.uid, program.mtime = 0o6777, 1000, 1_700_000_000
    entries["python/bin/tool"] = program
    member = layer(tmp_path, entries)["bin/tool"]
    assert (member.mode, member.uid, member.mtime) == (0o755, 0, LayerMember(path="x").mtime)
    assert layer(tmp_path, entries)["lib/python3.12/os.py"].mode == 0o644


def test_text_files_of_a_standalone_python_contain_the_image_folder(tmp_path):
    members = layer(tmp_path, sample_entries())
    assert text(members["lib/pkgconfig/python3.pc"]).startswith("prefix=/opt/python\n")
    assert text(members["bin/python3.12-config"]).endswith("prefix=/opt/python\n")
    namespace: dict[str, dict[str, object]] = {}
    exec(text(members[f"lib/python3.12/{SYSCONFIG}"]), namespace)
    assert namespace["build_time_vars"] == {
        "AR": "ar",
        "BINDIR": "/opt/python/bin",
        "CC": "cc -pthread",
        "CFLAGS": "-O3 -I/opt/python/include",
        "CXX": "c++",
        "SIZEOF_VOID_P": 8,
        "prefix": "/opt/python",
    }


def test_standalone_python_layer_is_independent_of_order_and_owners(tmp_path):
    entries = sample_entries()
    (other := tmp_path / "other").mkdir()
    records = [
        write_layer(layer(folder, dict(order)).values(), None)
        for folder, order in ((tmp_path, entries.items()), (other, reversed(entries.items())))
    ]
    assert records[0] == records[1]


def test_programs_of_a_standalone_python_are_read_for_the_audit(tmp_path):
    stdlib = "lib/python3.12/lib-dynload/_ssl.cpython-312-x86_64-linux-gnu.so"
    test_module = "lib/python3.12/test/_test.so"
    files = {f"python/{name}": b"\x7fELF" for name in (stdlib, test_module)}
    path = written(tmp_path, {**sample_entries(), **files})
    # Tests and Tk are not in the layer.
    programs = {
        name: content() for name, content in python_archive.archive_programs(path, LABEL, "3.12")
    }
    assert programs == {
        "bin/python3.12": ELF + b"program",
        "lib/libpython3.so": b"\x7fELF",
        stdlib: b"\x7fELF",
    }


@each_row(
    "name",
    [
        "python/bin/python3.12",
        "python/include/python3.12/Python.h",
        "python/lib/python3.12/os.py",
        f"python/lib/python3.12/{SYSCONFIG}",
    ],
)
def test_python_archive_with_a_different_layout_is_refused(tmp_path, name):
    entries = sample_entries()
    del entries[name]
    with pytest.raises(IntegrityError, match=f"^{re.escape(LABEL)} has no ") as caught:
        described(tmp_path, entries)
    assert "install_only" in str(caught.value.hint)


def test_python_archive_without_a_licence_is_refused(tmp_path):
    entries = sample_entries()
    del entries["python/lib/python3.12/LICENSE.txt"]
    with pytest.raises(IntegrityError, match="has no license"):
        described(tmp_path, entries)
    entries["python/licenses/LICENSE.cpython.txt"] = b"PSF"
    assert described(tmp_path, entries) == "3.12.11"


def test_python_archive_of_another_release_or_architecture_is_refused(tmp_path):
    with pytest.raises(IntegrityError, match=r"has Python 3\.11\.9, not 3\.12"):
        described(tmp_path, sample_entries(patch="3.11.9"))
    with pytest.raises(IntegrityError, match="is not a program for arm64"):
        described(tmp_path, sample_entries(), Arch.ARM64)
    entries = {**sample_entries(), "python/bin/python3.12": b"#!/bin/sh\n"}
    with pytest.raises(IntegrityError, match="is not a program for x86_64"):
        described(tmp_path, entries)


def test_error_for_a_python_archive_of_another_release_names_the_release(tmp_path):
    with pytest.raises(IntegrityError, match=r"has Python 3\.10, not 3\.12$") as caught:
        described(tmp_path, sample_entries("3.10", "3.10.13"))
    assert "correct `version` or `archives` of the base" in str(caught.value.hint)


@pytest.mark.parametrize("needed", ["libpython3.12.so.1.0", "$ORIGIN/../lib/libpython3.12.so.1.0"])
def test_interpreter_without_its_libpython_is_refused(tmp_path, needed):
    program = small_elf.elf_file(small_elf.NEEDED, needed)
    entries = {**sample_entries(), "python/bin/python3.12": program}
    with pytest.raises(IntegrityError) as caught:
        described(tmp_path, entries)
    missing = "has no python/lib/libpython3.12.so.1.0, which python/bin/python3.12 needs"
    assert caught.value.message == f"{LABEL} {missing}"
    library = "python/lib/libpython3.12.so.1.0"
    assert described(tmp_path, {**entries, library: b"\x7fELF"}) == "3.12.11"


@each_row(
    ("flags", "kind"), [("t", "free-threaded"), ("d", "debug"), ("td", "free-threaded debug")]
)
@each_row("linked", [False, True])
def test_python_build_with_a_different_abi_is_refused(
    tmp_path: Path, flags: str, kind: str, linked: bool
) -> None:
    folder = f"python/include/python3.12{flags}"
    entries = {
        name.replace("python/include/python3.12", folder): entry
        for name, entry in sample_entries().items()
    }
    entries[f"python/bin/python3.12{flags}"] = entries.pop("python/bin/python3.12")
    if linked:
        entries["python/bin/python3.12"] = f"python3.12{flags}"
    with pytest.raises(IntegrityError) as caught:
        described(tmp_path, entries)
    build = f"has a {kind} build, python/bin/python3.12{flags}"
    assert caught.value.message == f"{LABEL} {build}, which cannot load the wheels for cp312"


def test_python_build_for_musl_is_refused(tmp_path: Path) -> None:
    folder = "python/lib/python3.12"
    dynamic = {
        **sample_entries(),
        "python/bin/python3.12": small_elf.elf_with_linker("/lib/ld-musl-x86_64.so.1"),
    }
    static = sample_entries()
    static[f"{folder}/_sysconfigdata__linux_x86_64-linux-musl.py"] = static.pop(
        f"{folder}/{SYSCONFIG}"
    )
    for entries in (dynamic, static):
        with pytest.raises(IntegrityError, match=r"is a build for musl, but the base uses glibc$"):
            described(tmp_path, entries)
    linker = small_elf.elf_with_linker("/lib64/ld-linux-x86-64.so.2")
    assert described(tmp_path, {**sample_entries(), "python/bin/python3.12": linker}) == "3.12.11"


def test_interpreter_with_damaged_headers_is_refused(tmp_path):
    entries = {**sample_entries(), "python/bin/python3.12": ELF[:40]}
    with pytest.raises(IntegrityError, match=r"python/bin/python3\.12 cannot be read"):
        described(tmp_path, entries)


@each_row(
    ("name", "entry", "what"),
    [
        ("python/../etc/passwd", b"", "has an unsafe path"),
        ("/python/bin/x", b"", "has an unsafe path"),
        ("python/bin/a\x1b[31m", b"", "has an unsafe path"),
        ("other/bin/x", b"", "is not below python/"),
        ("python", b"", "is not below python/"),
        ("python/bin/x", "/usr/bin/python3", "outside of python/"),
        ("python/bin/x", "../../etc/passwd", "outside of python/"),
        ("python/bin/x", "..", "outside of python/"),
        (
            "python/bin/x",
            special(tarfile.LNKTYPE, "python/bin/python3.12"),
            "which is not a file, folder",
        ),
        (
            "python/bin/x",
            special(tarfile.CHRTYPE),
            "which is not a file, folder or symbolic link",
        ),
        (
            "python/bin/x",
            special(tarfile.FIFOTYPE),
            "which is not a file, folder or symbolic link",
        ),
        ("python/./bin/python3.12", b"", "twice"),
        (f"python/{'x' * 1100}", b"", "has a path of"),
    ],
)
def test_unsafe_members_of_a_python_archive_are_refused(tmp_path, name, entry, what):
    entries = {**sample_entries(), name: entry}
    with pytest.raises(IntegrityError, match=what) as caught:
        described(tmp_path, entries)
    assert "\x1b" not in caught.value.message
    with pytest.raises(IntegrityError, match=what):
        layer(tmp_path, entries)


def test_python_archive_with_a_member_below_a_link_is_refused(tmp_path):
    entries = {**sample_entries(), "python/share": "lib", "python/share/x": b"text"}
    with pytest.raises(IntegrityError, match="'share/x' below 'share', which is not a folder"):
        layer(tmp_path, entries)


def test_python_archive_with_a_member_below_an_added_link_is_refused(tmp_path):
    """The reader adds `bin/python` as a link to the interpreter."""
    entries = {**sample_entries(), "python/bin/python/x": b"text"}
    with pytest.raises(IntegrityError, match="'bin/python/x' below 'bin/python', which is not a"):
        layer(tmp_path, entries)


def test_oversized_program_in_a_python_archive_is_refused_unread(tmp_path, monkeypatch):
    monkeypatch.setattr(python_archive, "PROGRAM_LIMIT", 1000)
    path = written(tmp_path, {**sample_entries(), "python/lib/libbig.so": bytes(1001)})
    programs = python_archive.archive_programs(path, LABEL, "3.12")
    big = next(content for name, content in programs if name == "lib/libbig.so")
    with pytest.raises(IntegrityError, match=r"lib/libbig\.so of 1001 bytes \(limit 1000\)"):
        big()


def test_oversized_python_archive_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(python_archive, "UNPACKED_LIMIT", 100)
    with pytest.raises(IntegrityError, match="which exceeds the limits"):
        described(tmp_path, sample_entries())


def test_data_after_the_end_of_a_python_archive_is_limited(tmp_path, monkeypatch):
    monkeypatch.setattr(python_archive, "UNPACKED_LIMIT", 1 << 20)
    monkeypatch.setattr(python_archive, "ENTRY_LIMIT", 100)
    path = written(tmp_path, sample_entries())
    path.write_bytes(path.read_bytes() + pack_archive({}) * 300)
    with pytest.raises(IntegrityError, match="unpacked size exceeds"):
        python_archive.describe_archive(path, LABEL, python="3.12", arch=Arch.X86_64)


@pytest.mark.parametrize("cut", [10, 100, 300])
def test_damaged_python_archive_is_refused(tmp_path, cut):
    path = written(tmp_path, sample_entries())
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(IntegrityError, match=re.escape(LABEL)):
        python_archive.describe_archive(path, LABEL, python="3.12", arch=Arch.X86_64)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "is not a gzip file"),
        (b"<html>Sign in</html>", "is not a gzip file"),
        (b"\x28\xb5\x2f\xfd" + bytes(100), "is compressed with zstd"),
    ],
)
def test_python_archive_that_is_not_gzip_is_refused(
    tmp_path: Path, content: bytes, what: str
) -> None:
    path = tmp_path / "archive"
    path.write_bytes(content)
    with pytest.raises(IntegrityError, match=f"^{re.escape(LABEL)} {what}") as caught:
        python_archive.describe_archive(path, LABEL, python="3.12", arch=Arch.X86_64)
    assert "install_only" in str(caught.value.hint)


def test_missing_links_to_the_interpreter_are_added(tmp_path):
    entries = sample_entries()
    del entries["python/bin/python3"]
    members = layer(tmp_path, entries)
    assert members["bin/python3"].kind is MemberKind.LINK
    assert (members["bin/python3"].target, members["bin/python"].target) == (
        "python3.12", "python3"
    )  # fmt: skip
