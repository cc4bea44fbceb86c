"""Tests the paths, modes, scripts and RECORD of installed wheels."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import tarfile
from pathlib import Path

import pytest

from imgbuild.errors import IntegrityError
from imgbuild.oci.content import FileReader, content_pieces
from imgbuild.oci.layer import write_layer
from imgbuild.oci.tar import FileSlice, LayerMember, MemberKind
from imgbuild.wheel import install
from tests.support.rows import each_row
from tests.support.wheels import LINK, PROGRAM, write_wheel

SITE = "opt/venv/lib/python3.11/site-packages"
INFO = f"{SITE}/demo-1.0.dist-info"


def content(member: LayerMember) -> bytes:
    with FileReader() as files:
        return b"".join(content_pieces(member.content or b"", member.size, member.path, files))


def installed(path: Path, *omit: str) -> dict[str, LayerMember]:
    """The installed members by path, for Python 3.11 in /opt/venv."""
    members = install.installed_members(
        path, prefix="/opt/venv", python="3.11", omit=frozenset(omit)
    )
    assert [item.path for item in members] == sorted((m.path for m in members), key=str.encode)
    assert all(item.kind is MemberKind.FILE for item in members)
    return {item.path: item for item in members}


def rows(members: dict[str, LayerMember]) -> dict[str, tuple[str, str]]:
    lines = list(csv.reader(io.StringIO(content(members[f"{INFO}/RECORD"]).decode())))
    assert lines == sorted(lines, key=lambda line: line[0].encode())
    return {path: (digest, size) for path, digest, size in lines}


def hashed(data: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")


def test_each_type_of_wheel_file_is_installed_in_its_folder(tmp_path: Path) -> None:
    data = "demo-1.0.data"
    files = {
        "demo/__init__.py": b"",
        "demo/run.sh": b"#!/bin/sh\n",
        f"{data}/purelib/demo/pure.py": b"pure",
        f"{data}/platlib/demo/plat.so": b"plat",
        f"{data}/headers/demo.h": b"header",
        f"{data}/data/share/man/demo.1": b"page",
        f"{data}/data/bin/helper": b"helper",
        f"{data}/scripts/tool": b"#!python\nprint(1)\n",
        f"{data}/scripts/shell": b"#!/bin/sh\necho 1\n",
    }
    members = installed(write_wheel(tmp_path, files, modes={"demo/run.sh": PROGRAM}))
    expected = {
        f"{SITE}/demo/__init__.py": (b"", 0o644),
        f"{SITE}/demo/run.sh": (b"#!/bin/sh\n", 0o755),
        f"{SITE}/demo/pure.py": (b"pure", 0o644),
        f"{SITE}/demo/plat.so": (b"plat", 0o644),
        "opt/venv/include/site/python3.11/demo/demo.h": (b"header", 0o644),
        "opt/venv/share/man/demo.1": (b"page", 0o644),
        "opt/venv/bin/helper": (b"helper", 0o644),
        "opt/venv/bin/tool": (b"#!/opt/venv/bin/python\nprint(1)\n", 0o755),
        "opt/venv/bin/shell": (b"#!/bin/sh\necho 1\n", 0o755),
        f"{INFO}/INSTALLER": (b"imgbuild\n", 0o644),
    }
    for path, (data_there, mode) in expected.items():
        assert (content(members[path]), members[path].mode) == (data_there, mode), path
    others = {f"{INFO}/{name}" for name in ("METADATA", "WHEEL", "RECORD")}
    assert members.keys() == expected.keys() | others
    # Files that installation does not change remain slices of the wheel.
    assert isinstance(members[f"{SITE}/demo/run.sh"].content, FileSlice)
    assert isinstance(members["opt/venv/bin/shell"].content, FileSlice)


def test_record_file_lists_every_file_with_a_hash(tmp_path: Path) -> None:
    claimed = "demo/claimed.txt,sha512=as-the-wheel-says,7\n"
    weak = "demo/weak.txt,md5=as-the-wheel-says,4\ndemo/gone.txt,sha256=x,1\n"
    files = {
        "demo/claimed.txt": b"claimed",
        "demo/weak.txt": b"weak",
        "demo/with, comma.txt": b"missing from RECORD",
        "demo-1.0.data/scripts/tool": b"#!python\n",
        "demo-1.0.dist-info/entry_points.txt": b"[console_scripts]\ncall = demo:main\n",
    }
    wheel_record = claimed + weak + "demo-1.0.data/scripts/tool,sha256=x,9\n"
    members = installed(write_wheel(tmp_path, files, record=wheel_record))
    record_rows = rows(members)
    base = f"{SITE}/"
    depth = "../../../"
    assert record_rows.keys() == {
        path.removeprefix(base) if path.startswith(base) else path.replace("opt/venv/", depth)
        for path in members
    }
    assert record_rows["demo/claimed.txt"] == ("sha512=as-the-wheel-says", "7")
    assert record_rows["demo/weak.txt"] == (hashed(b"weak"), "4")
    assert record_rows["demo/with, comma.txt"] == (hashed(b"missing from RECORD"), "19")
    tool = b"#!/opt/venv/bin/python\n"
    assert record_rows["../../../bin/tool"] == (hashed(tool), str(len(tool)))
    call = content(members["opt/venv/bin/call"])
    assert record_rows["../../../bin/call"] == (hashed(call), str(len(call)))
    assert record_rows["demo-1.0.dist-info/RECORD"] == ("", "")


def test_installer_files_in_a_wheel_are_ignored(tmp_path: Path) -> None:
    files = {
        "demo/__pycache__/a.cpython-311.pyc": b"bytecode",
        "demo/sourceless.pyc": b"a module",
        "demo-1.0.dist-info/INSTALLER": b"other\n",
        "demo-1.0.dist-info/REQUESTED": b"",
        "demo-1.0.dist-info/direct_url.json": b"{}",
        "demo/vendored-1.0.dist-info/REQUESTED": b"",
    }
    members = installed(write_wheel(tmp_path, files))
    assert content(members[f"{INFO}/INSTALLER"]) == b"imgbuild\n"
    assert f"{SITE}/demo/sourceless.pyc" in members
    assert f"{SITE}/demo/vendored-1.0.dist-info/REQUESTED" in members
    for gone in (f"{INFO}/REQUESTED", f"{INFO}/direct_url.json"):
        assert gone not in members
    assert not any("__pycache__" in path for path in members)


def test_launchers_of_entry_points_are_created(tmp_path: Path) -> None:
    points = b"""\
[console_scripts]
plain = demo.cli:main
With.Extra-s = demo:Tool.run [one, two]
shadow = demo:shadow
[gui_scripts]
window = demo.gui:show
[other.group]
any thing = not a reference at all
"""
    files = {
        "demo-1.0.dist-info/entry_points.txt": points,
        "demo-1.0.data/scripts/shadow": b"#!/bin/sh\n# gives way to the launcher\n",
    }
    members = installed(write_wheel(tmp_path, files))
    scripts = {path for path in members if path.startswith("opt/venv/bin/")}
    names = ("plain", "With.Extra-s", "shadow", "window")
    assert scripts == {f"opt/venv/bin/{name}" for name in names}
    assert all(members[path].mode == 0o755 for path in scripts)
    text = content(members["opt/venv/bin/With.Extra-s"]).decode()
    assert text.startswith("#!/opt/venv/bin/python\n")
    assert "from demo import Tool\n" in text
    assert "sys.exit(Tool.run())" in text
    assert b"sys.exit(shadow())" in content(members["opt/venv/bin/shadow"])


def test_omitted_files_are_not_listed_in_the_record_file(tmp_path: Path) -> None:
    files = {
        "demo/a.py": b"a",
        "demo/b.py": b"b",
        "demo-1.0.dist-info/entry_points.txt": b"[console_scripts]\ncall = demo:main\n",
    }
    path = write_wheel(tmp_path, files)
    members = installed(path, "opt/venv/bin/call", f"{SITE}/demo/a.py")
    assert set(installed(path)) - set(members) == {"opt/venv/bin/call", f"{SITE}/demo/a.py"}
    assert "demo/a.py" not in rows(members)
    assert "../../../bin/call" not in rows(members)
    assert "demo/b.py" in rows(members)


@each_row(
    ("files", "word"),
    [
        ({"demo-1.0.data/stray": b""}, "expected one of its folders"),
        ({"demo-1.0.data/wrong/x": b""}, ".data/wrong"),
        ({"demo/x": b"1", "demo-1.0.data/purelib/demo/x": b"2"}, "installed twice"),
        ({"demo-1.0.dist-info/entry_points.txt": b"no section\n"}, "cannot be read"),
        ({"demo-1.0.dist-info/RECORD": b"demo/x,sha256=a\n"}, "PATH,HASH,SIZE"),
        ({"demo-1.0.dist-info/RECORD": b"a,,1\na,,2\n"}, "two different lines"),
    ],
)
def test_inconsistent_wheels_are_refused(
    tmp_path: Path, files: dict[str, bytes], word: str
) -> None:
    path = write_wheel(tmp_path, files)
    with pytest.raises(IntegrityError) as caught:
        installed(path)
    assert word in caught.value.message
    assert path.name in caught.value.message
    assert caught.value.hint


def test_equal_files_for_the_same_path_become_one_file(tmp_path: Path) -> None:
    files = {"demo/x": b"1", "demo-1.0.data/purelib/demo/x": b"1"}
    assert content(installed(write_wheel(tmp_path, files))[f"{SITE}/demo/x"]) == b"1"


def test_link_in_a_wheel_becomes_a_file_with_the_linked_content(tmp_path: Path) -> None:
    path = write_wheel(tmp_path, {"demo/link": b"a.txt"}, modes={"demo/link": LINK})
    member = installed(path)[f"{SITE}/demo/link"]
    assert (member.kind, content(member)) == (MemberKind.FILE, b"a.txt")


def test_installed_paths_depend_on_prefix_and_python(tmp_path: Path) -> None:
    path = write_wheel(tmp_path, {"demo-1.0.data/scripts/tool": b"#!python3 -E\nx\n"})
    members = install.installed_members(path, prefix="/srv/env/", python="3.13")
    paths = {member.path: member for member in members}
    assert content(paths["srv/env/bin/tool"]) == b"#!/srv/env/bin/python\nx\n"
    assert "srv/env/lib/python3.13/site-packages/demo-1.0.dist-info/METADATA" in paths


def test_wheel_layer_has_golden_digest(tmp_path: Path) -> None:
    path = write_wheel(tmp_path, {"demo/__init__.py": b"x = 1\n" * 1000})
    sink = io.BytesIO()
    write_layer(installed(path).values(), sink)
    sink.seek(0)
    with tarfile.open(fileobj=sink, mode="r:gz") as tar:
        file = tar.extractfile(f"{SITE}/demo/__init__.py")
        assert file is not None
        assert file.read() == b"x = 1\n" * 1000


def shared(
    folder: Path, name: str, files: dict[str, bytes], **more: int
) -> tuple[LayerMember, ...]:
    folder.mkdir(exist_ok=True)
    path = write_wheel(folder, files, name=name, modes=more)
    return install.installed_members(path, prefix="/opt/venv", python="3.11")


def test_wheels_in_one_layer_can_share_equal_files(tmp_path: Path) -> None:
    first_members = shared(tmp_path, "one", {"space/__init__.py": b"same", "space/one.py": b"1"})
    two = shared(tmp_path, "two", {"space/__init__.py": b"same", "space/two.py": b"2"})
    members = install.join_wheels([("b" * 64, first_members), ("a" * 64, two)])
    assert members == install.join_wheels([("a" * 64, two), ("b" * 64, first_members)])
    paths = [member.path for member in members]
    assert paths == sorted({member.path for member in (*first_members, *two)})
    (shared_member,) = [member for member in members if member.path == f"{SITE}/space/__init__.py"]
    assert isinstance(shared_member.content, FileSlice)
    assert shared_member.content.path.name.startswith("two")  # the lower sha256


def test_wheels_in_one_layer_with_conflicting_contents_are_refused(tmp_path: Path) -> None:
    first_members = shared(tmp_path, "one", {"space/__init__.py": b"same"})
    two = shared(tmp_path, "two", {"space/__init__.py": b"Same"})
    wheels = [("b" * 64, first_members), ("a" * 64, two)]
    labels = {"a" * 64: "two-1.0.whl", "b" * 64: "one-1.0.whl"}
    with pytest.raises(IntegrityError) as caught:
        install.join_wheels(wheels, labels=labels)
    assert "two-1.0.whl and one-1.0.whl install" in caught.value.message
    assert f"/{SITE}/space/__init__.py" in caught.value.message
    assert "drop" in (caught.value.hint or "")
