"""Creates a package index of small real wheels, for a server on this machine.

`site_files` returns PEP 503 pages as on plain mirrors, with the JSON API. Other methods return
pages in the formats of PyTorch and FlashInfer.
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

from imgbuild.values import normalize_package

EARLY = "2025-01-01T00:00:00.000000Z"


def wheel_bytes(
    name: str,
    version: str,
    requires: Sequence[str] = (),
    files: Mapping[str, bytes] | None = None,
    tag: str = "py3-none-any",
) -> bytes:
    """A wheel with one module. `requires` is written to Requires-Dist."""
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
    """A .tar.gz source distribution with `files` in its only folder."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for path, data in files.items():
            member = tarfile.TarInfo(f"{name}-{version}/{path}")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


@dataclass
class PublishedFile:
    """A file in the listing of an index."""

    package: str
    file: str
    data: bytes
    uploaded: str
    yanked: bool


@dataclass
class LocalIndex:
    """Files to publish, which `site_files` returns in the format of a server."""

    published: list[PublishedFile] = field(default_factory=list)

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
    ) -> PublishedFile:
        """Publish a wheel built from these arguments."""
        data = wheel_bytes(name, version, requires, files, tag)
        file = f"{name.replace('-', '_')}-{version}-{tag}.whl"
        return self.add(name, file, data, uploaded=uploaded, yanked=yanked)

    def add(
        self, name: str, file: str, data: bytes, *, uploaded: str = EARLY, yanked: bool = False
    ) -> PublishedFile:
        """Publish any file."""
        item = PublishedFile(normalize_package(name), file, data, uploaded, yanked)
        self.published.append(item)
        return item

    def site_files(self, *, api: bool = True) -> dict[str, bytes]:
        """The pages, the files and, if `api`, the JSON API, by path."""
        files = {f"packages/{quote(item.file)}": item.data for item in self.published}
        for package in {item.package for item in self.published}:
            package_files = [item for item in self.published if item.package == package]
            files[f"simple/{package}/"] = _page(package_files, "../../packages/", hashes=True)
            if api:
                files[f"pypi/{package}/json"] = _json_api(package_files)
        return files

    def json_files(self) -> dict[str, bytes]:
        """The files, and the project pages in JSON (PEP 691) with upload times (PEP 700)."""
        files = {f"packages/{quote(item.file)}": item.data for item in self.published}
        for package in {item.package for item in self.published}:
            listed = [
                {
                    "filename": item.file,
                    "url": f"../../packages/{quote(item.file)}",
                    "hashes": {"sha256": _hex(item.data)},
                    "size": len(item.data),
                    "upload-time": item.uploaded,
                    "yanked": item.yanked,
                }
                for item in self._of(package)
            ]
            versions = sorted({item.file.split("-")[1] for item in self._of(package)})
            page = {"meta": {"api-version": "1.1"}, "name": package, "versions": versions}
            files[f"simple/{package}/"] = json.dumps({**page, "files": listed}).encode()
        return files

    def pytorch_files(self, tag: str) -> dict[str, bytes]:
        """The pages and files of an index like PyTorch's, with absolute links and hashes.

        METADATA is next to each wheel and has two attributes. A comment ends the page.
        """
        files = {f"whl/{tag}/{quote(item.file)}": item.data for item in self.published}
        for package in {item.package for item in self.published}:
            links = []
            for item in self._of(package):
                metadata = wheel_metadata(item.data)
                files[f"whl/{tag}/{quote(item.file)}.metadata"] = metadata
                beside = f"sha256={hashlib.sha256(metadata).hexdigest()}"
                links.append(
                    f'    <a href="/whl/{tag}/{quote(item.file)}#sha256={_hex(item.data)}"'
                    f' data-dist-info-metadata="{beside}" data-core-metadata="{beside}">'
                    f"{html.escape(item.file)}</a><br/>"
                )
            text = "\n".join(
                ["<!DOCTYPE html>", "<html>", "  <body>", f"    <h1>Links for {package}</h1>",
                 *links, "  </body>", "</html>", "<!--TIMESTAMP 1767225600-->"]
            )  # fmt: skip
            files[f"whl/{tag}/{package}/"] = text.encode()
        return files

    def flashinfer_files(self, tag: str, torch: str) -> dict[str, bytes]:
        """The pages and files of an index in the former FlashInfer format, without hashes."""
        files = {f"releases/{quote(item.file)}": item.data for item in self.published}
        for package in {item.package for item in self.published}:
            page = _page(self._of(package), "../../../../releases/", hashes=False)
            files[f"whl/{tag}/torch{torch}/{package}/"] = page
        return files

    def flashinfer_pages(self, folder: str, releases: str) -> dict[str, bytes]:
        """The pages of an index like FlashInfer's, whose files are releases on another server.

        `folder` is cu124/torch2.6 for wheels of one torch, cu130 for a cache of compiled kernels,
        and empty for cubins. URLs contain an unescaped `+`, and a hash. This is the format of
        FlashInfer's scripts/update_whl_index.py, as of 2026-11-25.
        """
        pages = {}
        for package in {item.package for item in self.published}:
            links = "".join(
                f'<a href="{releases}/{self.release(item)}#sha256={_hex(item.data)}">'
                f"{item.file}</a><br>\n"
                for item in self._of(package)
            )
            head = f"<head><title>Links for {package}</title></head>"
            body = f"<body>\n<h1>Links for {package}</h1>\n{links}</body>"
            page = f"<!DOCTYPE html>\n<html>\n{head}\n{body}\n</html>\n"
            pages[f"whl/{folder}/{package}/".replace("//", "/")] = page.encode()
        return pages

    def release(self, item: PublishedFile) -> str:
        """The path of a released file, whose tag lacks the local part of the version."""
        version = item.file.split("-")[1].partition("+")[0]
        return f"v{version}/{item.file}"

    def _of(self, package: str) -> list[PublishedFile]:
        return [item for item in self.published if item.package == package]


def wheel_metadata(wheel: bytes) -> bytes:
    """The METADATA of a wheel."""
    with zipfile.ZipFile(io.BytesIO(wheel)) as opened:
        (name,) = (name for name in opened.namelist() if name.endswith(".dist-info/METADATA"))
        return opened.read(name)


def _page(items: Sequence[PublishedFile], base: str, *, hashes: bool) -> bytes:
    links = []
    for item in items:
        digest = f"#sha256={_hex(item.data)}" if hashes else ""
        yanked = ' data-yanked="broken"' if item.yanked else ""
        address = html.escape(f"{base}{quote(item.file)}{digest}")
        links.append(f'<a href="{address}"{yanked}>{html.escape(item.file)}</a><br/>')
    return ("<!DOCTYPE html>\n<html><body>\n" + "\n".join(links) + "\n</body></html>\n").encode()


def _json_api(items: Sequence[PublishedFile]) -> bytes:
    releases: dict[str, list[dict[str, object]]] = {}
    for item in items:
        releases.setdefault(item.file.split("-")[1], []).append(
            {
                "filename": item.file,
                "url": f"../../packages/{quote(item.file)}",
                "digests": {"sha256": _hex(item.data)},
                "size": len(item.data),
                "upload_time_iso_8601": item.uploaded,
                "yanked": item.yanked,
            }
        )
    return json.dumps({"releases": releases}).encode()


def _hex(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _hash(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
