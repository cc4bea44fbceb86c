"""A package index of small real wheels, for a server on this machine to serve.

Comes in: wheels made here, with upload times. Goes out: the files of a `Site`: PEP 503 pages as
plain mirrors have them, the JSON API beside them with relative addresses, or pages as PyTorch and
FlashInfer have them.
"""

from __future__ import annotations

import base64
import hashlib
import html
import io
import json
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote

from imgbuild.values import normalize

EARLY = "2025-01-01T00:00:00.000000Z"


def wheel_bytes(
    name: str,
    version: str,
    requires: Sequence[str] = (),
    files: Mapping[str, bytes] | None = None,
    tag: str = "py3-none-any",
) -> bytes:
    """A wheel with one module; `requires` become Requires-Dist."""
    plain = name.replace("-", "_")
    info = f"{plain}-{version}.dist-info"
    extras = sorted(
        {line.split('extra == "')[1].split('"')[0] for line in requires if "extra" in line}
    )
    metadata = [
        "Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}",
        *(f"Provides-Extra: {extra}" for extra in extras),
        *(f"Requires-Dist: {line}" for line in requires),
    ]  # fmt: skip
    contents = dict(files or {f"{plain}/__init__.py": f"VERSION = {version!r}\n".encode()})
    contents[f"{info}/METADATA"] = ("\n".join(metadata) + "\n").encode()
    contents[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n".encode()
    rows = [f"{path},sha256={_hash(data)},{len(data)}" for path, data in contents.items()]
    contents[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,", ""]).encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in contents.items():
            archive.writestr(zipfile.ZipInfo(path, (2020, 1, 1, 0, 0, 0)), data)
    return buffer.getvalue()


def sdist_bytes(name: str, version: str, files: Mapping[str, bytes]) -> bytes:
    """A .tar.gz source distribution that holds `files` in its one folder."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for path, data in files.items():
            member = tarfile.TarInfo(f"{name}-{version}/{path}")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


@dataclass
class Published:
    """A file as an index lists it."""

    package: str
    file: str
    data: bytes
    uploaded: str
    yanked: bool


@dataclass
class LocalIndex:
    """Files to publish; `site_files` gives them as a server has them."""

    published: list[Published] = field(default_factory=list)

    def wheel(
        self,
        name: str,
        version: str,
        requires: Sequence[str] = (),
        *,
        uploaded: str = EARLY,
        tag: str = "py3-none-any",
        yanked: bool = False,
        files: Mapping[str, bytes] | None = None,
    ) -> Published:
        """Publish a wheel made of these."""
        data = wheel_bytes(name, version, requires, files, tag)
        file = f"{name.replace('-', '_')}-{version}-{tag}.whl"
        return self.add(name, file, data, uploaded=uploaded, yanked=yanked)

    def add(
        self, name: str, file: str, data: bytes, *, uploaded: str = EARLY, yanked: bool = False
    ) -> Published:
        """Publish any file."""
        item = Published(normalize(name), file, data, uploaded, yanked)
        self.published.append(item)
        return item

    def site_files(self, *, api: bool = True) -> dict[str, bytes]:
        """Pages, JSON API (unless not `api`) and files, by path."""
        found = {f"packages/{quote(item.file)}": item.data for item in self.published}
        for package in {item.package for item in self.published}:
            own = [item for item in self.published if item.package == package]
            found[f"simple/{package}/"] = _page(own, "../../packages/", hashes=True)
            if api:
                found[f"pypi/{package}/json"] = _json_api(own)
        return found

    def pytorch_files(self, tag: str) -> dict[str, bytes]:
        """As the PyTorch index: links from the root of the server, `+` escaped, hashes, no API."""
        found = {f"whl/{tag}/{quote(item.file)}": item.data for item in self.published}
        for package in {item.package for item in self.published}:
            own = [item for item in self.published if item.package == package]
            found[f"whl/{tag}/{package}/"] = _page(own, f"/whl/{tag}/", hashes=True)
        return found

    def flashinfer_files(self, tag: str, torch: str) -> dict[str, bytes]:
        """As the FlashInfer index: a folder for each torch version, no hashes, no API."""
        found = {f"releases/{quote(item.file)}": item.data for item in self.published}
        for package in {item.package for item in self.published}:
            own = [item for item in self.published if item.package == package]
            page = _page(own, "../../../../releases/", hashes=False)
            found[f"whl/{tag}/torch{torch}/{package}/"] = page
        return found


def _page(items: Sequence[Published], base: str, *, hashes: bool) -> bytes:
    links = []
    for item in items:
        digest = f"#sha256={hashlib.sha256(item.data).hexdigest()}" if hashes else ""
        yanked = ' data-yanked="broken"' if item.yanked else ""
        address = html.escape(f"{base}{quote(item.file)}{digest}")
        links.append(f'<a href="{address}"{yanked}>{html.escape(item.file)}</a><br/>')
    return ("<!DOCTYPE html>\n<html><body>\n" + "\n".join(links) + "\n</body></html>\n").encode()


def _json_api(items: Sequence[Published]) -> bytes:
    releases: dict[str, list[dict[str, object]]] = {}
    for item in items:
        releases.setdefault(item.file.split("-")[1], []).append(
            {
                "filename": item.file,
                "url": f"../../packages/{quote(item.file)}",
                "digests": {"sha256": hashlib.sha256(item.data).hexdigest()},
                "size": len(item.data),
                "upload_time_iso_8601": item.uploaded,
                "yanked": item.yanked,
            }
        )
    return json.dumps({"releases": releases}).encode()


def _hash(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
