"""Tests reading members of a wheel from a file and from a server."""

import random
import zipfile

import pytest

from imgbuild.audit.packages.content import GAP, LONGEST_REQUEST, WheelMember, group_members
from imgbuild.audit.packages.reading import open_content
from imgbuild.errors import FetchFailed, IntegrityError
from imgbuild.http.client import HttpClient
from tests.support import wheels
from tests.support.servers import FileSite, serve_site

NOISE = random.Random(7).randbytes(3 * GAP)
FILES = {
    "demo/__init__.py": b"VALUE = 1\n",
    "demo/a.py": b"A = 1\n" * 1000,
    "demo/lib.so": NOISE,
    "demo/z.py": b"Z = 1\n",
}


@pytest.fixture(params=["file", "server"])
def content(request, tmp_path):
    path = wheels.write_wheel(tmp_path, FILES)
    if request.param == "file":
        yield open_content(path, path.name)
        return
    with serve_site(FileSite(files={path.name: path.read_bytes()})) as site:
        yield open_content(site.url(path.name), path.name, HttpClient(attempts=1))


def test_members_of_a_wheel_and_their_contents_are_read(content):
    assert content.members()["demo/a.py"].size == 6000
    assert content.read(["demo/z.py", "demo/a.py", "demo/absent.py"]) == {
        "demo/z.py": FILES["demo/z.py"],
        "demo/a.py": FILES["demo/a.py"],
    }
    assert b"".join(content.chunks("demo/lib.so")) == NOISE


def test_bytes_between_wheel_members_are_not_fetched(tmp_path):
    path = wheels.write_wheel(tmp_path, FILES)
    site = FileSite(files={path.name: path.read_bytes()})
    with serve_site(site):
        remote = open_content(site.url(path.name), path.name, HttpClient(attempts=1))
        assert set(remote.read(["demo/__init__.py", "demo/a.py", "demo/z.py"])) == {
            "demo/__init__.py",
            "demo/a.py",
            "demo/z.py",
        }
    ranges = [headers["Range"] for headers in site.received_requests(path.name)]
    assert ranges[0].startswith("bytes=-")
    spans = [tuple(map(int, text.removeprefix("bytes=").split("-"))) for text in ranges[1:]]
    assert len(spans) == 2
    assert sum(end - start for start, end in spans) < GAP


def member(start, end):
    return WheelMember(start, end, end - start, end - start, 0, 0)


def test_adjacent_wheel_members_are_fetched_in_one_request_up_to_a_limit():
    near, far = member(0, 10), member(10 + GAP + 1, 20 + GAP + 1)
    touching = member(10 + GAP, 20 + GAP)
    assert len(group_members([("a", near), ("b", far)])) == 2
    assert len(group_members([("a", near), ("b", touching)])) == 1
    halves = [
        ("a", member(0, LONGEST_REQUEST // 2)),
        ("b", member(LONGEST_REQUEST // 2, LONGEST_REQUEST + 1)),
    ]
    assert [len(group) for group in group_members(halves)] == [1, 1]


@pytest.mark.parametrize("remote", [False, True])
def test_damaged_wheel_content_is_rejected(tmp_path, remote):
    path = wheels.write_wheel(tmp_path, FILES, method=zipfile.ZIP_STORED)
    data = path.read_bytes().replace(b"VALUE = 1", b"VALUE = 2")
    path.write_bytes(data)
    with serve_site(FileSite(files={path.name: data})) as site:
        where = site.url(path.name) if remote else path
        damaged = open_content(where, "demo.whl", HttpClient(attempts=1))
        with pytest.raises(IntegrityError, match=r"demo\.whl: 'demo/__init__\.py' has CRC"):
            damaged.read(["demo/__init__.py"])


def test_file_that_is_not_a_zip_archive_is_rejected(tmp_path):
    path = tmp_path / "demo.whl"
    path.write_bytes(b"no zip at all")
    with pytest.raises(IntegrityError, match="is not a readable wheel"):
        open_content(path, "demo.whl").members()
    with pytest.raises(IntegrityError, match="cannot read"):
        open_content(tmp_path / "absent.whl", "absent.whl").members()


def test_wheel_server_is_not_queried_in_offline_mode():
    with pytest.raises(FetchFailed, match="downloads are disabled"):
        open_content("http://localhost/demo.whl", "demo.whl")


def test_wheel_with_a_misplaced_local_header_is_rejected(tmp_path):
    path = wheels.write_wheel(tmp_path, FILES)
    data = path.read_bytes()
    path.write_bytes(b"XXXX" + data[4:])
    with pytest.raises(IntegrityError, match="no local header"):
        open_content(path, "demo.whl").read(["demo-1.0.dist-info/METADATA"])
