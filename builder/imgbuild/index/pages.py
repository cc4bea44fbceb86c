"""Reads package indexes, and assigns packages to indexes.

PEP 503 HTML, PEP 691 JSON, flat pages of links, and the JSON API next to a simple index are
supported. A package is looked up only on the index that the target assigns to the package. This
prevents dependency confusion, because no other index can provide the package.
"""

from __future__ import annotations

import datetime
import functools
import html.parser
import re
import threading
import urllib.parse
import weakref
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol

import msgspec
from packaging.utils import (
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import Version

from imgbuild.errors import FetchFailed, InputError, IntegrityError
from imgbuild.lock.addresses import GIT_INDEX
from imgbuild.lock.resolution import LockedFile
from imgbuild.matrix.model import Matrix, PackageIndex, Target
from imgbuild.system import decoding
from imgbuild.system.boundary import NONSENSE, convert_read_errors
from imgbuild.values import FileSize, normalize_package

SIMPLE_TYPES = (
    "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2,"
    " text/html;q=0.1"
)
# The suffixes of sdists, including unsupported ones, which `refusal` reports.
SDIST = re.compile(r"\.(zip|tgz|tar(\.\w+)?)\Z")
FILES_LIMIT = 250_000  # limit for one page
URL, GIT = "url", GIT_INDEX  # the index name of packages by URL
PROJECT = "project"  # the index name of the user's packages, whose wheels are built locally
GIT_ADDRESS = "git+"  # prefix of the URL of a git tree


class IndexFile(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A file that an index lists. `size` is in bytes.

    Values that the index does not provide are None. `editable` is set for a wheel that imgbuild
    builds for the user's project.
    """

    name: str
    url: str
    sha256: str | None = None
    size: FileSize | None = None
    requires_python: str | None = None
    yanked: bool = False
    uploaded: datetime.datetime | None = None
    metadata: bool = False
    metadata_sha256: str | None = None
    editable: bool = False

    @property
    def is_wheel(self) -> bool:
        """True if the file name belongs to a wheel."""
        return self.name.endswith(".whl")

    @property
    def version(self) -> Version | None:
        """The version in the file name, or None if the name is invalid."""
        parsed = _parse_file_name(self.name)
        return parsed[1] if parsed is not None else None


@functools.cache  # called millions of times in one run, for about ten thousand names
def _parse_file_name(name: str) -> tuple[str, Version] | None:
    try:
        if name.endswith(".whl"):
            return parse_wheel_filename(name)[:2]
        return parse_sdist_filename(SDIST.sub(".tar.gz", name))
    except ValueError:  # raised by packaging, and by Python for a number of 5,000 digits
        return None


NO_FILES: Mapping[str, tuple[IndexFile, ...]] = {}


class IndexAddress(msgspec.Struct, frozen=True, kw_only=True):
    """An index. `address` is the complete URL, can contain a password, and must not be printed."""

    name: str
    address: str
    flat: bool = False
    timed: bool = True

    @property
    def is_local(self) -> bool:
        """True if the index is a local folder, which is read without requests."""
        return is_local(self.address)


class PageLike(Protocol):
    """The attributes of a downloaded page that this module uses."""

    @property
    def url(self) -> str:
        """The final URL after redirects."""

    @property
    def text(self) -> str:
        """The decoded body."""

    @property
    def content_type(self) -> str:
        """The media type."""


class PageClient(Protocol):
    """The methods of `http.client.HttpClient` that indexes need.

    The key of a cached audit includes the code of this module, but must not depend on the code of
    `http`.
    """

    def text(self, url: str, accept: str = "*/*") -> PageLike:
        """Fetch the page at `url`. Raises FetchFailed on failure."""


def fill_address(index: PackageIndex, *, cuda: str, torch: str | None) -> str | None:
    """Fill CUDA release `cuda` ("12.4") and torch version `torch` ("2.6.0") into an index URL.

    Raises InputError if the URL contains a torch version and the target does not pin torch.
    """
    if index.url is None:
        return None
    if "{torch}" in index.url and torch is None:
        message = (
            f"the index {index.url} depends on the torch version, but the target does not pin torch"
        )
        raise InputError(message, hint="add torch to the target's pins")
    minor = ".".join((torch or "").split("+")[0].split(".")[:2])
    return index.url.replace("{cuda_tag}", "cu" + cuda.replace(".", "")).replace("{torch}", minor)


def index_addresses(
    matrix: Matrix, target: Target, default: Callable[[], str]
) -> dict[str, IndexAddress]:
    """Return the indexes of `target` by name.

    `default` returns the URL of an index that has no URL in the matrix.
    """
    names = {matrix.default_index, *target.indexes.values()}
    return {
        name: IndexAddress(
            name=name,
            address=fill_address(index, cuda=target.cuda, torch=target.pins.get("torch"))
            or default(),
            flat=index.flat,
            timed=index.upload_times == "index",
        )
        for name, index in matrix.indexes.items()
        if name in names
    }


class IndexLookup:
    """Looks up packages on their assigned indexes.

    Each page is requested once. `direct` maps normalized names of packages without an index to
    files: a wheel, or the sdist of a git tree.
    """

    _known: ClassVar[
        weakref.WeakKeyDictionary[PageClient, dict[tuple[IndexAddress, str], tuple[IndexFile, ...]]]
    ] = weakref.WeakKeyDictionary()

    def __init__(
        self,
        places: Mapping[str, IndexAddress],
        assigned: Mapping[str, str],
        default: str,
        http: PageClient,
        direct: Mapping[str, tuple[IndexFile, ...]] = NO_FILES,
    ) -> None:
        self.places = places
        self._direct = direct
        self._assigned = assigned
        self._default = default
        self._http = http
        self._lock = threading.Lock()
        self._once: dict[str, threading.Lock] = {}
        self._files = self._known.setdefault(http, {})

    def place(self, package: str) -> IndexAddress:
        """Return the assigned index of `package`, or URL or GIT for a package required by URL."""
        direct = self._direct.get(normalize_package(package))
        if direct is not None:
            name = GIT if direct[0].url.startswith(GIT_ADDRESS) else URL
            name = PROJECT if direct[0].editable else name
            return IndexAddress(name=name, address=direct[0].url, timed=False)
        return self.places[self._assigned.get(normalize_package(package), self._default)]

    def files(self, package: str) -> tuple[IndexFile, ...]:
        """Return the files of `package` on its index, in the order of the page.

        Raises FetchFailed if the index does not respond.
        """
        package = normalize_package(package)
        if package in self._direct:
            return self._direct[package]
        with self._lock:
            once = self._once.setdefault(package, threading.Lock())
        with once:
            key = (self.place(package), package)
            if key not in self._files:
                self._files[key] = self._look_up_package(package)
            return self._files[key]

    def file_urls(self, package: str, locked: LockedFile) -> list[str]:
        """Return the URLs of the file `locked` on the index of `package`.

        The file is found by name and, if listed, SHA-256. The result is empty if the file was
        removed from the index. Raises IntegrityError if the index has a file with the same name but
        other contents.
        """
        named = [file for file in self.files(package) if file.name == locked.file]
        same = [file.url for file in named if file.sha256 in (None, locked.sha256)]
        if named and not same:
            message = (
                f"{locked.file} on the index {self.place(package).name} has sha256 "
                f"{named[0].sha256}, but the lock has {locked.sha256}"
            )
            hint = "the file was replaced on the index; lock the target again"
            raise IntegrityError(message, hint=hint)
        return same

    def _look_up_package(self, package: str) -> tuple[IndexFile, ...]:
        place = self.place(package)
        address = place.address if place.flat else f"{place.address.rstrip('/')}/{package}/"
        page = read_if_present(lambda: self._http.text(address, accept=SIMPLE_TYPES))
        if page is None:
            return ()
        with convert_read_errors(_shown_page(page), hint=NONSENSE):
            listed = read_page(page)
        files = tuple(
            file
            for file in listed
            if belongs_to_package(file.name, package) and may_name(place.address, file.url)
        )
        lacking = any(file.size is None or file.uploaded is None for file in files)
        if place.timed and lacking and not place.flat:
            return merge_files(files, self._json_api(place, package))
        return files

    def _json_api(self, place: IndexAddress, package: str) -> dict[str, IndexFile]:
        address = place.address.rstrip("/").removesuffix("/simple")
        page = read_if_present(lambda: self._http.text(f"{address}/pypi/{package}/json"))
        if page is None:
            return {}
        with convert_read_errors(_shown_page(page), hint=NONSENSE):
            return read_json_api(page)


def _shown_page(page: PageLike) -> str:
    return "the page " + page.url.partition("?")[0]


def may_name(index: str, url: str) -> bool:
    """Return whether a page at `index` may link to `url`.

    Only local pages may link to local files.
    """
    return not is_local(url) or is_local(index)


def is_local(url: str) -> bool:
    """Return whether a URL refers to the local file system."""
    if url.startswith(("https://", "http://")):  # nearly all: a page has thousands of them
        return False
    return urllib.parse.urlsplit(url).scheme == "file"


def read_if_present(read: Callable[[], PageLike]) -> PageLike | None:
    """Call `read`, and return None for status 404 or 410."""
    try:
        return read()
    except FetchFailed as error:
        if getattr(error, "status", None) in (404, 410):
            return None
        raise


def belongs_to_package(name: str, package: str) -> bool:
    """Return whether a file has the name of `package` or an invalid name.

    Most file names start with the package name, and need not be parsed.
    """
    start = name.partition("-") if name.endswith(".whl") else SDIST.sub("", name).rpartition("-")
    return normalize_package(start[0]) == package or package_of_file(name) in (package, None)


def package_of_file(name: str) -> str | None:
    """Return the package in a file name, or None if the name is invalid."""
    parsed = _parse_file_name(name)
    return parsed[0] if parsed is not None else None


def read_page(page: PageLike) -> list[IndexFile]:
    """Read the files on a project page or a flat page of links, in the order of the page."""
    if "json" in page.content_type or page.text.startswith("{"):
        return read_json(_decode_json(page), page.url)
    return read_html(page.text, page.url)


def _decode_json(page: PageLike) -> dict[str, Any]:
    """Decode a JSON object. Unlike Python's decoder, msgspec refuses unpaired surrogates."""
    return decoding.decode_json(page.text, dict[str, Any])


def read_json(document: Mapping[str, Any], url: str) -> list[IndexFile]:
    """Read the files on a PEP 691 project page, with PEP 700 fields if there are any."""
    files: list[IndexFile] = []
    for entry in document.get("files", ()):
        if len(files) >= FILES_LIMIT:
            raise _too_many()
        core = entry.get("core-metadata", entry.get("dist-info-metadata", False))
        files.append(
            _file(
                name=entry["filename"],
                url=_join_url(url, entry["url"]),
                sha256=entry.get("hashes", {}).get("sha256"),
                size=entry.get("size"),
                requires_python=entry.get("requires-python"),
                yanked=bool(entry.get("yanked", False)),
                uploaded=parse_upload_time(entry.get("upload-time")),
                metadata=bool(core),
                metadata_sha256=core.get("sha256") if isinstance(core, dict) else None,
            )
        )
    return files


def _join_url(page: str, url: str) -> str:
    return url if url.startswith("https://") else urllib.parse.urljoin(page, url)


def _file(**fields: object) -> IndexFile:
    """Raise ValidationError for a value of the wrong type."""
    return decoding.convert(fields, IndexFile)


def _too_many() -> IntegrityError:
    message = f"an index page has more than {FILES_LIMIT} links"
    return IntegrityError(message, hint=NONSENSE)


class _LinkParser(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.base: str | None = None
        self.anchors: list[dict[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag == "base" and self.base is None:
            self.base = values.get("href")
        elif tag == "a" and values.get("href"):
            if len(self.anchors) >= FILES_LIMIT:
                raise _too_many()
            self.anchors.append(values)


def read_html(text: str, url: str) -> list[IndexFile]:
    """Read the files on a PEP 503 page, with PEP 592, 658 and 714 attributes if there are any."""
    links = _LinkParser()
    links.feed(text)
    base = urllib.parse.urljoin(url, links.base) if links.base else url
    files = []
    for anchor in links.anchors:
        address, fragment = urllib.parse.urldefrag(urllib.parse.urljoin(base, anchor["href"] or ""))
        name = urllib.parse.unquote(urllib.parse.urlsplit(address).path.rsplit("/", 1)[-1])
        if not name.endswith(".whl") and not SDIST.search(name):
            continue
        hashes = dict(urllib.parse.parse_qsl(fragment))
        core = anchor.get("data-core-metadata", anchor.get("data-dist-info-metadata"))
        files.append(
            IndexFile(
                name=name,
                url=address,
                sha256=hashes.get("sha256"),
                requires_python=anchor.get("data-requires-python") or None,
                yanked="data-yanked" in anchor,
                uploaded=parse_upload_time(anchor.get("data-upload-time")),
                metadata=core not in (None, "false"),
                metadata_sha256=(core or "").removeprefix("sha256=")
                if "sha256=" in (core or "")
                else None,
            )
        )
    return files


def read_json_api(page: PageLike) -> dict[str, IndexFile]:
    """Read the files in a response of the JSON API, by name. URLs can be relative to the page."""
    document = _decode_json(page)
    return {
        entry["filename"]: _file(
            name=entry["filename"],
            url=urllib.parse.urljoin(page.url, entry["url"]),
            sha256=entry.get("digests", {}).get("sha256"),
            size=entry.get("size"),
            requires_python=entry.get("requires_python"),
            yanked=bool(entry.get("yanked")),
            uploaded=parse_upload_time(
                entry.get("upload_time_iso_8601") or entry.get("upload_time")
            ),
        )
        for files in document.get("releases", {}).values()
        for entry in files
    }


def merge_files(
    files: tuple[IndexFile, ...], more: Mapping[str, IndexFile]
) -> tuple[IndexFile, ...]:
    """Add missing data from the JSON API to `files`, except to files whose hashes differ."""
    merged = []
    for file in files:
        extra = more.get(file.name)
        if extra is None or (file.sha256 and extra.sha256 and file.sha256 != extra.sha256):
            merged.append(file)
            continue
        merged.append(
            msgspec.structs.replace(
                file,
                sha256=file.sha256 or extra.sha256,
                size=file.size if file.size is not None else extra.size,
                uploaded=file.uploaded or extra.uploaded,
                requires_python=file.requires_python or extra.requires_python,
                yanked=file.yanked or extra.yanked,
            )
        )
    return tuple(merged)


def parse_upload_time(text: str | None) -> datetime.datetime | None:
    """Parse an upload time, in UTC if it has no offset. Return None if it is invalid."""
    if not text:
        return None
    try:
        time = datetime.datetime.fromisoformat(text)
    except ValueError:
        return None
    return time if time.tzinfo else time.replace(tzinfo=datetime.UTC)
