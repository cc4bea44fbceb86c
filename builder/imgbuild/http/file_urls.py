"""Serves folders in `file:` URLs as pages of links.

Ranges of files are supported, so that wheels in folders are read in the same way as on servers.
"""

# A separate module: replaces a server.
from __future__ import annotations

import html
import io
import re
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote, unquote, urlsplit

import requests
import requests.adapters
import urllib3

RANGE = re.compile(r"bytes=(\d*)-(\d*)")
REASONS = {200: "OK", 206: "Partial Content", 404: "Not Found", 416: "Range Not Satisfiable"}


class FolderAdapter(requests.adapters.BaseAdapter):
    """Responds to `file:` requests, which never come from redirects or links of a server."""

    def send(self, request: requests.PreparedRequest, *_: Any, **__: Any) -> requests.Response:
        """Return the response for a file or folder."""
        path = Path(unquote(urlsplit(request.url or "").path))
        if path.is_dir():
            return _answer(request, 200, io.BytesIO(_page(path)), {"Content-Type": "text/html"})
        if not path.is_file():
            return _answer(request, 404, io.BytesIO(), {})
        size = path.stat().st_size
        match = RANGE.fullmatch(request.headers.get("Range", ""))
        if match is None or match.groups() == ("", ""):
            return _answer(request, 200, path.open("rb"), {"Content-Length": str(size)})
        start, end = _range_bounds(match[1], match[2], size)
        if start >= end:
            return _answer(request, 416, io.BytesIO(), {"Content-Range": f"bytes */{size}"})
        piece = _FileRange(path.open("rb"), start, end - start)
        headers = {
            "Content-Length": str(end - start),
            "Content-Range": f"bytes {start}-{end - 1}/{size}",
        }
        return _answer(request, 206, piece, headers)

    def close(self) -> None:
        """Do nothing, because no file is kept open."""


class _FileRange(io.RawIOBase):
    """A stream of `length` bytes of a file from offset `start`."""

    def __init__(self, file: BinaryIO, start: int, length: int) -> None:
        super().__init__()
        self._file, self._left = file, length
        file.seek(start)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._file.read(min(len(buffer), self._left))
        buffer[: len(data)] = data
        self._left -= len(data)
        return len(data)

    def close(self) -> None:
        self._file.close()
        super().close()


def _range_bounds(first: str, last: str, size: int) -> tuple[int, int]:
    """Return the start and exclusive end of a range: a-b, a-, or -n for the last n bytes."""
    if not first:
        return max(0, size - int(last)), size
    return int(first), min(size, int(last) + 1 if last else size)


def _page(folder: Path) -> bytes:
    names = sorted(path.name for path in folder.iterdir() if path.is_file())
    links = (f'<a href="{quote(name)}">{html.escape(name)}</a>' for name in names)
    return ("<!DOCTYPE html>\n<html><body>\n" + "\n".join(links) + "\n</body></html>\n").encode()


def _answer(
    request: requests.PreparedRequest, status: int, body: Any, headers: dict[str, str]
) -> requests.Response:
    response = requests.Response()
    response.status_code, response.reason = status, REASONS[status]
    response.url, response.request = request.url or "", request
    response.headers.update(headers)
    if request.method == "HEAD":
        body.close()
        body = io.BytesIO()
    response.raw = urllib3.HTTPResponse(
        body=body, headers=headers, status=status, preload_content=False, decode_content=False
    )
    return response
