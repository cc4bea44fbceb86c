"""Tests parsing URLs of packages, and which URLs are refused."""

import pytest

from imgbuild.lock import addresses
from imgbuild.lock.addresses import GitAddress, WheelAddress
from tests.support.rows import each_row

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@each_row(
    ("text", "url", "rev", "subdirectory"),
    [
        ("git+https://git.example/a/b.git", "https://git.example/a/b.git", "", ""),
        ("git+https://git.example/a/b@v1.0", "https://git.example/a/b", "v1.0", ""),
        ("git+https://git.example/a/b@team/x", "https://git.example/a/b", "team/x", ""),
        (f"git+ssh://git@git.example/a@{COMMIT}", "ssh://git@git.example/a", COMMIT, ""),
        ("git+ssh://git@git.example:2222/a", "ssh://git@git.example:2222/a", "", ""),
        ("git+file:///srv/a#subdirectory=python/b", "file:///srv/a", "", "python/b"),
        ("git+https://git.example/a@1#egg=a&subdirectory=b/", "https://git.example/a", "1", "b"),
        ("git+http://127.0.0.1:8000/a@main", "http://127.0.0.1:8000/a", "main", ""),
    ],
)
def test_repository_url_is_parsed(text, url, rev, subdirectory):
    address = addresses.parse_address(text)
    assert address == GitAddress(url=url, rev=rev, subdirectory=subdirectory)
    assert addresses.parse_address(str(address)) == address


def test_wheel_url_or_path_is_parsed():
    name = "demo-1.0%2Bcu12-py3-none-any.whl"
    address = addresses.parse_address(f"https://files.example/a/{name}?v=1#sha256=AB&md5=1")
    assert address == WheelAddress(
        place=f"https://files.example/a/{name}?v=1", hashes=("sha256:ab",)
    )
    assert address.name == "demo-1.0+cu12-py3-none-any.whl"
    path = addresses.parse_address("wheels/demo-1.0+cu12-py3-none-any.whl")
    assert isinstance(path, WheelAddress)
    assert path.is_path
    assert path.name == "demo-1.0+cu12-py3-none-any.whl"


@each_row(
    "text",
    [
        "", "wheels", "/a-1-py3-none-any.whl", "a/../../b-1-py3-none-any.whl", "git+", "git+https://",
        "git+https://git.example/a@", "git+https://git.example/a@-x", "git+https://git.example/a@x..y",
        "git+https://git.example/a@{u}", "git+https://git.example/a?x=1", "git+git@git.example:a/b",
        "git+git://git.example/a", "git+http://git.example/a", "git+https://git.example/a\n@x",
        "git+https://[::1/a", "https://[::1/a.whl", "https:///a.whl", "git+ssh://me:word@git.example/a",
        "https://files.example/a.whl\\", "ssh://files.example/a-1-py3-none-any.whl",
    ],
)  # fmt: skip
def test_invalid_repository_or_wheel_url_is_refused(text):
    with pytest.raises(ValueError, match=r"."):
        addresses.parse_address(text)
