"""Parses URLs of packages that are not from an index: wheels, and folders of git commits.

The URLs are written as in requirements: `https://…/NAME-VERSION-….whl`, `wheels/NAME-VERSION-….whl`
(relative to the project), `git+https://…@REV#subdirectory=FOLDER`.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from urllib.parse import parse_qsl, quote, unquote, urlsplit, urlunsplit

import msgspec

from imgbuild.values import CONTROLS

GIT = "git+"
GIT_INDEX = "git"  # the name of the index of what is built from a repository
GIT_SCHEMES = ("https", "ssh", "file", "http")
COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
# A branch, a tag or a commit that a command line cannot misinterpret.
REV = re.compile(r"\w[\w./+=%@-]*")
SECRET = re.compile(
    r"token|secret|passw|credential|signature|^sig$|api.?key|^key$|auth", re.IGNORECASE
)
LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")
NETRC = "store the credentials in netrc or in a git credential helper"


class WheelAddress(msgspec.Struct, frozen=True, kw_only=True):
    """A wheel that is not from an index.

    `place` is a URL or a path in the project, and `hashes` are in the URL's fragment.
    """

    place: str
    hashes: tuple[str, ...] = ()

    @property
    def is_path(self) -> bool:
        """True if the wheel is a file of the project."""
        return "://" not in self.place

    @property
    def name(self) -> str:
        """The file name of the wheel."""
        path = self.place if self.is_path else unquote(urlsplit(self.place).path)
        return path.rpartition("/")[2]

    def __str__(self) -> str:
        return self.place


class GitAddress(msgspec.Struct, frozen=True, kw_only=True):
    """A folder of a git repository.

    `rev` is a branch, tag or commit, or "" for the default branch.
    """

    url: str
    rev: str = ""
    subdirectory: str = ""

    def __str__(self) -> str:
        at = f"@{self.rev}" if self.rev else ""
        folder = f"#subdirectory={quote(self.subdirectory)}" if self.subdirectory else ""
        return f"{GIT}{self.url}{at}{folder}"


Address = WheelAddress | GitAddress


def is_commit(text: str) -> bool:
    """Return whether `text` is a complete git hash (SHA-1 or SHA-256 in hexadecimal)."""
    return COMMIT.fullmatch(text) is not None


def strip_secrets(text: str) -> str:
    """Remove credentials, query and fragment from the URL `text`."""
    return re.sub(r"[?#].*", "", re.sub(r"://[^/]*@", "://", text))


def parse_address(text: str) -> Address:
    """Parse `text` as a URL.

    Raises ValueError, without credentials in the message, if `text` is invalid.
    """
    if re.search(rf"[{CONTROLS}\\]", text):
        message = "a URL cannot contain control characters or backslashes"
        raise ValueError(message)
    return (
        _parse_git_address(text.removeprefix(GIT))
        if text.startswith(GIT)
        else parse_wheel_address(text)
    )


def parse_wheel_address(text: str) -> WheelAddress:
    """Parse the URL or path of a wheel.

    Raises the same errors as `parse_address`.
    """
    parts = urlsplit(text)
    if not parts.scheme:
        if not text.endswith(".whl"):
            message = "the path does not end in .whl"
            raise ValueError(message)
        return WheelAddress(place=_check_relative_path(text))
    _refuse_secrets(text)
    if parts.scheme == "http" and parts.hostname not in LOCAL_HOSTS:
        message = "http does not protect the file against changes in transit; use https"
        raise ValueError(message)
    if parts.scheme not in ("https", "http") or not parts.hostname:
        message = f"{parts.scheme}: is not a URL scheme for wheels; use https://…"
        raise ValueError(message)
    hashes = tuple(
        f"{name}:{value.lower()}"
        for name, value in parse_qsl(parts.fragment)
        if name in ("sha256", "sha384", "sha512")
    )
    address = WheelAddress(place=urlunsplit(parts._replace(fragment="")), hashes=hashes)
    if not address.name.endswith(".whl"):
        message = "the URL does not end in .whl; for a repository, use git+https://…"
        raise ValueError(message)
    return address


def _parse_git_address(text: str) -> GitAddress:
    parts = urlsplit(text)
    _refuse_secrets(text)
    if parts.scheme not in GIT_SCHEMES:
        allowed = ", ".join(f"{GIT}{scheme}" for scheme in GIT_SCHEMES[:3])
        message = f"{GIT}{parts.scheme} is not the URL of a repository; use {allowed}"
        raise ValueError(message)
    if parts.scheme == "http" and parts.hostname not in LOCAL_HOSTS:
        message = f"http does not protect the repository against changes in transit; use {GIT}https"
        raise ValueError(message)
    if parts.query or (parts.scheme != "file" and not parts.hostname):
        message = "the URL of the repository has a query, or has no host"
        raise ValueError(message)
    if (parts.hostname or "").startswith("-") or (parts.username or "").startswith("-"):
        message = "the host of the URL starts with a hyphen"
        raise ValueError(message)
    path, at, rev = parts.path.rpartition("@")
    if not at:
        path, rev = rev, ""
    rev = unquote(rev)
    if at and (not REV.fullmatch(rev) or ".." in rev or "@{" in rev):
        message = f"{rev!r} is not the name of a branch, a tag or a commit"
        raise ValueError(message)
    folder = dict(parse_qsl(parts.fragment)).get("subdirectory", "").strip("/")
    subdirectory = _check_relative_path(folder) if folder not in ("", ".") else ""
    url = urlunsplit(parts._replace(path=path, fragment=""))
    return GitAddress(url=url, rev=rev, subdirectory=subdirectory)


def _check_relative_path(path: str) -> str:
    """Raise ValueError if `path` is outside its base folder."""
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts or not pure.parts:
        message = "the path is outside the project"
        raise ValueError(message)
    return str(pure)


def _refuse_secrets(text: str) -> None:
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError:
        message = "the host or port of the URL is invalid; use HOST/PATH instead of HOST:PATH"
        raise ValueError(message) from None
    login = parts.password is not None or (parts.username and parts.scheme != "ssh")
    if login:
        message = f"the URL contains a username or password: {NETRC}"
        raise ValueError(message)
    names = [name for name, _ in parse_qsl(parts.query) if SECRET.search(name)]
    if names:
        message = f"the URL contains a secret ({', '.join(names)}); use a URL without secrets"
        raise ValueError(message)
