"""Parses URLs of requirements and indexes."""

from __future__ import annotations

import re
from urllib.parse import SplitResult, unquote, urlsplit

from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import Version

# A user and password, or a token as the user; an ssh user without a password is not secret.
LOGIN = re.compile(
    r"(?<!ssh)://[^/\s'\"]{1,2000}@|(?<=ssh)://[^/\s'\":@]{0,400}:[^/\s'\"]{0,2000}@"
)
QUERY = re.compile(r"(://[^\s?#'\"]{1,2000})\?[^\s#'\"]+")


def strip_secrets(text: str) -> str:
    """Return `text` for display, with credentials and queries removed from URLs."""
    return QUERY.sub(r"\1", LOGIN.sub("://", text))


def split_url(url: str) -> SplitResult | None:
    """Split a URL into its parts. Return None if Python cannot parse the URL."""
    try:
        parts = urlsplit(url)
        _ = parts.port  # is checked when it is read
    except ValueError:
        return None
    return parts


def url_path(url: str) -> str:
    """Return the unescaped path of a URL, or "" if the URL has none or is invalid."""
    parts = split_url(url)
    return unquote(parts.path) if parts else ""


def file_name(url: str) -> str:
    """Return the last component of a URL's path."""
    return url_path(url).rpartition("/")[2]


def url_fragment(url: str) -> dict[str, str]:
    """Return the values after `#` in a URL, as in `#egg=NAME&subdirectory=FOLDER`."""
    parts = split_url(url)
    pairs = (part.partition("=") for part in (parts.fragment if parts else "").split("&"))
    return {key: unquote(value) for key, _, value in pairs if key}


def wheel_version(url: str) -> Version | None:
    """Return the version in the file name of a wheel, or None for other files."""
    try:
        return parse_wheel_filename(file_name(url))[1]
    except InvalidWheelFilename:
        return None
