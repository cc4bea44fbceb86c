"""Reads paginated lists of a registry, such as tags, repositories and referrers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import urljoin

import msgspec

from imgbuild import codec
from imgbuild.errors import FetchFailed
from imgbuild.http.client import PLAIN
from imgbuild.http.credentials import origin, redact
from imgbuild.http.request import Request
from imgbuild.registry import hosts
from imgbuild.registry.authorizer import pulling
from imgbuild.registry.hosts import Endpoint
from imgbuild.registry.image_reference import Repository
from imgbuild.registry.manifests import expected
from imgbuild.registry.transport import RegistryHttp, at

if TYPE_CHECKING:
    from imgbuild.http.session import Response

LIMIT = 16 * 1024 * 1024
PAGES = 100_000  # some registries return ten entries per page, none has a million entries
_NEXT = re.compile(r'<([^>]*)>\s*((?:;\s*[\w!#$&*+.^`|~-]+\s*=\s*(?:"[^"]*"|[^\s;,"]+)\s*)*)')
CATALOG = "registry:catalog:*"


class RegistryPage(msgspec.Struct, frozen=True):
    """A page: body, media type, and URL of the next page."""

    data: bytes
    media_type: str
    next: str | None


class _Tags(msgspec.Struct, frozen=True):
    tags: list[str] | None = None


class _Catalog(msgspec.Struct, frozen=True):
    repositories: list[str] | None = None


def tags(http: RegistryHttp, repository: Repository) -> Iterator[str]:
    """The tags of a repository in the registry's order. Raises NotFound if it is missing."""
    path, scope = f"{repository.name}/tags/list", pulling(repository.name)
    with expected(repository):
        for page in pages(http, repository.host, Request(path, PLAIN, scopes=(scope,))):
            yield from codec.decode(page.data, _Tags, file=f"tags of {repository}").tags or ()


def catalog(http: RegistryHttp, host: str) -> Iterator[str]:
    """The names of the repositories in a registry."""
    for page in pages(http, host, Request("_catalog", PLAIN, scopes=(CATALOG,))):
        yield from codec.decode(page.data, _Catalog, file=f"catalog of {host}").repositories or ()


def pages(http: RegistryHttp, host: str, request: Request) -> Iterator[RegistryPage]:
    """Read all pages of a list, starting at the path of `request`."""

    def _read(response: Response) -> RegistryPage:
        kind = response.headers.get("Content-Type", "").partition(";")[0].strip()
        return RegistryPage(http.client.body(response, LIMIT), kind, _following(response))

    def _first(endpoint: Endpoint) -> tuple[RegistryPage, str]:
        return http.client.retrying(at(endpoint, request), _read), endpoint.address

    page, server = http.first_result(host, hosts.RESOLVE, _first)
    seen: set[str] = set()
    while True:
        yield page
        if page.next is None:
            return
        if page.next in seen or len(seen) >= PAGES:
            way = "are circular" if page.next in seen else f"are more than {PAGES}"
            message = f"{redact(page.next)}: the pages of this list {way}"
            raise FetchFailed(message, hint="contact the registry's administrator")
        seen.add(page.next)
        following = Request(page.next, request.headers, scopes=request.scopes, server=server)
        page = http.client.retrying(following, _read)


def _following(response: Response) -> str | None:
    """The URL of the next page, which must be on the same server."""
    for address, fields in _NEXT.findall(response.headers.get("Link", "")):
        if re.search(r';\s*rel\s*=\s*"?next"?', fields, re.IGNORECASE):
            try:
                place: str = urljoin(response.url, address)
                near = origin(place) == origin(response.url)
            except ValueError:  # invalid brackets or port
                message = f"{redact(response.url)}: the next page has no valid URL"
                raise FetchFailed(message, hint="contact the registry's administrator") from None
            if not near:
                message = (
                    f"{redact(response.url)}: the next page is on another server, {redact(place)}"
                )
                raise FetchFailed(message, hint="contact the registry's administrator")
            return place
    return None
