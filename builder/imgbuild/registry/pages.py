"""Reads paginated lists of tags, repositories or referrers from a registry."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import urljoin

import msgspec

from imgbuild import codec
from imgbuild.errors import FetchFailed
from imgbuild.http.client import IDENTITY_ENCODING
from imgbuild.http.credentials import redact_url, url_origin
from imgbuild.http.request import Request
from imgbuild.registry import hosts
from imgbuild.registry.authorizer import pull_scope
from imgbuild.registry.hosts import HostEndpoint
from imgbuild.registry.image_reference import Repository
from imgbuild.registry.manifests import convert_not_found
from imgbuild.registry.transport import RegistryHttp, request_at

if TYPE_CHECKING:
    from imgbuild.http.session import Response

LIMIT = 16 * 1024 * 1024
PAGES = 100_000  # some registries return ten entries per page, none has a million entries
_NEXT = re.compile(r'<([^>]*)>\s*((?:;\s*[\w!#$&*+.^`|~-]+\s*=\s*(?:"[^"]*"|[^\s;,"]+)\s*)*)')
CATALOG = "registry:catalog:*"


class RegistryPage(msgspec.Struct, frozen=True):
    """A page of a list: the body, the media type, and the URL of the next page."""

    data: bytes
    media_type: str
    next: str | None


class _TagsPage(msgspec.Struct, frozen=True):
    tags: list[str] | None = None


class _CatalogPage(msgspec.Struct, frozen=True):
    repositories: list[str] | None = None


def list_tags(http: RegistryHttp, repository: Repository) -> Iterator[str]:
    """Yield the tags of a repository, in the registry's order. Raises NotFound if it is missing."""
    path, scope = f"{repository.name}/tags/list", pull_scope(repository.name)
    with convert_not_found(repository):
        for page in iterate_pages(
            http, repository.host, Request(path, IDENTITY_ENCODING, scopes=(scope,))
        ):
            yield from codec.decode(page.data, _TagsPage, file=f"tags of {repository}").tags or ()


def list_catalog(http: RegistryHttp, host: str) -> Iterator[str]:
    """Yield the names of the repositories in a registry."""
    for page in iterate_pages(
        http, host, Request("_catalog", IDENTITY_ENCODING, scopes=(CATALOG,))
    ):
        yield from (
            codec.decode(page.data, _CatalogPage, file=f"catalog of {host}").repositories or ()
        )


def iterate_pages(http: RegistryHttp, host: str, request: Request) -> Iterator[RegistryPage]:
    """Yield all pages of a list, starting at the path of `request`."""

    def _read_page(response: Response) -> RegistryPage:
        kind = response.headers.get("Content-Type", "").partition(";")[0].strip()
        return RegistryPage(http.client.body(response, LIMIT), kind, _next_page_url(response))

    def _first_page(endpoint: HostEndpoint) -> tuple[RegistryPage, str]:
        return http.client.retry_request(
            request_at(endpoint, request), _read_page
        ), endpoint.address

    page, server = http.first_result(host, hosts.RESOLVE, _first_page)
    seen: set[str] = set()
    while True:
        yield page
        if page.next is None:
            return
        if page.next in seen or len(seen) >= PAGES:
            fault = "is circular" if page.next in seen else f"has more than {PAGES} pages"
            message = f"{redact_url(page.next)}: this list {fault}"
            raise FetchFailed(message, hint="contact the registry's administrator")
        seen.add(page.next)
        following = Request(page.next, request.headers, scopes=request.scopes, server=server)
        page = http.client.retry_request(following, _read_page)


def _next_page_url(response: Response) -> str | None:
    """Return the URL of the next page. Raises FetchFailed if it is on another server."""
    for address, fields in _NEXT.findall(response.headers.get("Link", "")):
        if re.search(r';\s*rel\s*=\s*"?next"?', fields, re.IGNORECASE):
            try:
                place: str = urljoin(response.url, address)
                near = url_origin(place) == url_origin(response.url)
            except ValueError:  # invalid brackets or port
                message = f"{redact_url(response.url)}: the next page has no valid URL"
                raise FetchFailed(message, hint="contact the registry's administrator") from None
            if not near:
                message = (
                    f"{redact_url(response.url)}: the next page is on another server,"
                    f" {redact_url(place)}"
                )
                raise FetchFailed(message, hint="contact the registry's administrator")
            return place
    return None
