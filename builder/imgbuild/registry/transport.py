"""Sends requests to the endpoints of a registry, in order, until one responds."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urljoin, urlsplit

import msgspec

from imgbuild.errors import FetchFailed, IntegrityError
from imgbuild.http.client import HttpClient
from imgbuild.http.credentials import url_origin
from imgbuild.http.request import Request
from imgbuild.registry import hosts
from imgbuild.registry.authorizer import RegistryAuthorizer
from imgbuild.registry.hosts import HostEndpoint

if TYPE_CHECKING:
    from imgbuild.http.session import Response

T = TypeVar("T")


class RegistryHttp:
    """Sends requests to registries through `client`, which has the same authorizer. Thread-safe.

    If `origin` is set, all requests are sent to the endpoint for pushes, and none to mirrors.
    """

    def __init__(self, client: HttpClient, authorizer: RegistryAuthorizer, *, origin: bool) -> None:
        self.client = client
        self.reporter = authorizer.reporter
        # Registries for which a blob upload in one request failed.
        self.fragile: set[str] = set()
        self._authorizer = authorizer
        self._origin = origin

    def capable_endpoints(self, registry: str, capability: str) -> tuple[HostEndpoint, ...]:
        """Return the endpoints of `registry` with `capability`, in order.

        For pushes, only one endpoint is returned. Raises FetchFailed if no endpoint has the
        capability.
        """
        required = hosts.PUSH if self._origin else capability
        endpoints = [
            endpoint
            for endpoint in self._authorizer.endpoints(registry)
            if required in endpoint.capabilities
        ]
        if not endpoints:
            message = f"no endpoint of {registry} has the capability {capability}"
            raise FetchFailed(message, hint="check `capabilities` in hosts.toml")
        return tuple(endpoints[:1] if required == hosts.PUSH else endpoints)

    def send_request(
        self,
        registry: str,
        capability: str,
        request: Request,
        read: Callable[[Response], T],
    ) -> T:
        """Send `request`, whose URL is a path below `/v2`, and return the result of `read`."""
        return self.first_result(
            registry,
            capability,
            lambda endpoint: self.client.retry_request(request_at(endpoint, request), read),
        )

    def first_result(self, registry: str, capability: str, use: Callable[[HostEndpoint], T]) -> T:
        """Return the result of `use` for the first endpoint for which `use` does not fail.

        Raises the last error if `use` fails for all endpoints.
        """
        endpoints = self.capable_endpoints(registry, capability)
        for endpoint in endpoints[:-1]:
            try:
                return use(endpoint)
            except (FetchFailed, IntegrityError) as failure:
                self.reporter.detail(f"{failure.message}; trying the next endpoint of {registry}")
        return use(endpoints[-1])

    def location_url(self, response: Response, shown: str) -> str:
        """Return the URL in the Location header. Raises FetchFailed if the URL is not allowed."""
        named = response.headers.get("Location", "")
        if not named:
            message = f"{shown}: the response has no Location header"
            raise FetchFailed(message)
        try:
            here, place = urlsplit(response.url), urlsplit(urljoin(response.url, named))
            url_origin(place.geturl())  # its port may be invalid
            downgraded = (here.scheme, place.scheme) == ("https", "http")
            if downgraded and here.hostname == place.hostname:
                # A registry behind a TLS-terminating proxy often returns http URLs.
                place = place._replace(scheme="https", netloc=here.netloc)
        except ValueError:
            message = f"{shown}: the registry redirects to an invalid URL"
            raise FetchFailed(message) from None
        if place.scheme not in ("http", "https") or not place.hostname:
            message = f"{shown}: the registry redirects to a URL that is not HTTP or HTTPS"
            raise FetchFailed(message)
        if here.scheme == "https" and place.scheme != "https":
            message = f"{shown}: the registry redirects to {place.hostname} without encryption"
            raise FetchFailed(message)
        return place.geturl()


def request_at(endpoint: HostEndpoint, request: Request) -> Request:
    """Return a copy of `request` with the path resolved to a URL of `endpoint`."""
    return msgspec.structs.replace(request, url=endpoint.url(request.url), server=endpoint.address)
