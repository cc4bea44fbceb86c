"""Authorizes requests to registries, and reads errors and warnings in responses.

Tokens and credentials are sent only to the endpoint that requested them. If a redirect or an upload
location leads to another host or port, this request and all later requests are anonymous.
Otherwise, a registry could obtain the user's credentials for other registries.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Collection
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from imgbuild.http.client import Authorizer, HttpClient, RequestRefused
from imgbuild.http.credentials import LoginPair, strip_login, url_host, url_origin
from imgbuild.http.request import Request
from imgbuild.registry import hosts, logins, tokens
from imgbuild.registry.hosts import HostEndpoint
from imgbuild.registry.tokens import AcceptedHeader
from imgbuild.system import decoding
from imgbuild.system.reporter import SILENT_REPORTER, Reporter

if TYPE_CHECKING:
    import ssl

    from imgbuild.http.session import Response

READING_METHODS = ("GET", "HEAD")
_ERROR_BYTES = 64 * 1024
_Key = tuple[str, tuple[str, ...], bool]  # origin, scopes, whether it is anonymous
_WARNING = re.compile(r'\b299 \S+ "((?:[^"\\]|\\.)*)"')


class RegistryError(msgspec.Struct, frozen=True):
    """An error in the body of a registry's response."""

    code: str = ""
    message: str = ""


class RegistryErrors(msgspec.Struct, frozen=True):
    """The body of an error response, as defined in the OCI distribution specification."""

    errors: list[RegistryError] = []


class RegistryRefused(RequestRefused):
    """An error response of a registry: the reason, without the URL, and the error codes."""

    reason: str = ""
    codes: tuple[str, ...] = ()


def pull_scope(name: str) -> str:
    """Return the token scope for reading the repository `name`."""
    return f"repository:{name}:pull"


def push_scope(name: str) -> str:
    """Return the token scope for reading and writing the repository `name`."""
    return f"repository:{name}:pull,push"


class RegistryAuthorizer(Authorizer):
    """Authorizes requests to registries. Hosts in `plain_http` are accessed without TLS."""

    def __init__(
        self, plain_http: Collection[str] = (), reporter: Reporter = SILENT_REPORTER
    ) -> None:
        self.reporter = reporter
        self._plain_http = frozenset(plain_http)
        self._endpoints: dict[str, tuple[HostEndpoint, ...]] = {}
        self._grants: dict[_Key, AcceptedHeader] = {}
        self._warnings: set[tuple[str, str]] = set()
        self._contexts: dict[hosts.HostCertificates, ssl.SSLContext] = {}
        self._granting = threading.Lock()
        self._lock = threading.Lock()

    def endpoints(self, registry: str) -> tuple[HostEndpoint, ...]:
        """Return the endpoints of `registry` in order.

        Raises InputError if hosts.toml is invalid.
        """
        with self._lock:
            if registry not in self._endpoints:
                self._endpoints[registry] = hosts.host_endpoints(
                    registry, self._plain_http, reporter=self.reporter
                )
            return self._endpoints[registry]

    def add_allowed_headers(self, request: Request) -> Request:
        """Add the endpoint's URL and scopes to `request`.

        If `request` leaves the endpoint's server, it is made anonymous.
        """
        if not request.server:
            endpoint = self._endpoint(strip_login(request.url))
            if endpoint is None:
                return request
            scopes = request.scopes or _scopes(request.url, endpoint)
            request = msgspec.structs.replace(request, scopes=scopes, server=endpoint.address)
        away = url_origin(request.url) != url_origin(request.server)
        return msgspec.structs.replace(request, anonymous=True) if away else request

    def context(self, request: Request) -> ssl.SSLContext:
        """Return the TLS context for the endpoint of `request`. Redirects use the same context."""
        endpoint = self._endpoint(f"{request.server}/") if request.server else None
        shown = endpoint.certificates if endpoint else hosts.HostCertificates()
        if request.anonymous:  # a client certificate is a credential too
            shown = msgspec.structs.replace(shown, own=())
        if shown == hosts.HostCertificates():
            return super().context(request)
        with self._lock:
            if shown not in self._contexts:
                self._contexts[shown] = hosts.tls_context(shown)
            return self._contexts[shown]

    def send_authorized(
        self, http: HttpClient, request: Request, login: LoginPair | None
    ) -> Response:
        """Send `request`, with credentials if the server requests them. Returns any response."""
        response = self._answer(http, request, login)
        self._print_warnings(http, response)
        return response

    def refusal_error(self, http: HttpClient, request: Request, response: Response) -> Exception:
        """Return the exception for an error response, with the registry's message."""
        from imgbuild.http.session import TransientError

        failure = http.refusal_error(request, response)
        failures = _failures(http, response)
        words = http.credentials.scrub_text("; ".join(_failure_text(entry) for entry in failures))
        if isinstance(failure, TransientError):
            failure.reason += f" ({words})" if words else ""
            return failure
        if not isinstance(failure, RequestRefused):
            return failure
        hint = failure.hint
        if failure.is_denied:
            hint = (
                f"run docker login {url_host(request.url)} with an account that has this permission"
            )
            if request.anonymous:
                hint = (
                    f"{url_host(request.server)} redirected to {url_host(request.url)}, and "
                    "credentials are not sent to another server"
                )
        message = f"{failure.message}: {words}" if words else failure.message
        refusal = RegistryRefused(message, status=failure.status, hint=hint, total=failure.total)
        refusal.reason = message.removeprefix(f"{request.place}: ")
        refusal.codes = tuple(entry.code for entry in failures)
        return refusal

    # -- internals

    def _answer(self, http: HttpClient, request: Request, login: LoginPair | None) -> Response:
        """Send the request. If the server sends a challenge, send it again with credentials."""
        if request.anonymous and request.method not in READING_METHODS:
            return http.send_request(request, None)
        endpoint = None if request.anonymous else self._endpoint(request.url)
        headers = {**request.headers, **(endpoint.headers if endpoint else {})}
        request = msgspec.structs.replace(request, headers=headers)
        key = (url_origin(request.url), request.scopes, request.anonymous)
        grant = self._renew_grant(http, request, key, login)
        response = http.send_request(_add_grant(request, grant), None)
        challenge_header = response.headers.get("WWW-Authenticate", "")
        if response.status_code != 401:
            return response
        # violates the specification, so only basic authentication is possible
        if not challenge_header:
            plain = self._registry_login(request.url, login).login
            if grant is not None or request.anonymous or plain is None:
                return response
            response.close()
            return http.send_request(request, plain)
        with contextlib.ExitStack() as stack, self._granting:
            stack.callback(response.close)
            accepted = self._grants.get(key)
            if accepted is None or accepted is grant:
                challenges = tokens.parse_challenges(challenge_header)
                accepted = self._authorize_challenge(http, request, challenges, login)
            if accepted is None:
                stack.pop_all()
                return response
            self._grants[key] = accepted
        return http.send_request(_add_grant(request, accepted), None)

    def _renew_grant(
        self, http: HttpClient, request: Request, key: _Key, login: LoginPair | None
    ) -> AcceptedHeader | None:
        """Return the header for `key`, or None if no header is needed."""
        grant = self._grants.get(key)
        if grant is None or not grant.is_old:
            return grant
        with self._granting:
            if self._grants[key] is grant:
                renewed = self._authorize_challenge(http, request, [grant.challenge], login)
                self._grants[key] = renewed or msgspec.structs.replace(grant, until=None)
            return self._grants[key]

    def _authorize_challenge(
        self,
        http: HttpClient,
        request: Request,
        challenges: list[tokens.AuthChallenge],
        login: LoginPair | None,
    ) -> AcceptedHeader | None:
        """Return the header for the first supported challenge, or None if none is supported."""
        registry_login = (
            logins.RegistryLogin()
            if request.anonymous
            else self._registry_login(request.url, login)
        )
        for secret in registry_login.secret_texts:
            http.credentials.hide_secret(secret)
        send = partial(_request_token, http)
        for challenge in sorted(challenges, key=lambda candidate: candidate.scheme != "bearer"):
            grant = tokens.answer_challenge(challenge, request, registry_login, send)
            if grant is not None:
                http.credentials.hide_secret(grant.header.partition(" ")[2])
                return grant
        return None

    def _registry_login(self, url: str, login: LoginPair | None) -> logins.RegistryLogin:
        """Return the credentials for `url`. `login` is from netrc or a keyring."""
        endpoint, registry_login = (
            self._endpoint(url),
            logins.find_registry_login(url_host(url), self.reporter),
        )
        if (
            registry_login == logins.RegistryLogin()
            and endpoint is not None
            and not endpoint.mirror
        ):
            registry_login = logins.find_registry_login(endpoint.host, self.reporter)
        if registry_login == logins.RegistryLogin() and login is not None:
            registry_login = logins.RegistryLogin(login)
        return registry_login

    def _endpoint(self, url: str) -> HostEndpoint | None:
        """Return the endpoint of `url`, or None if no request was sent to the host."""
        with self._lock:
            endpoints = [
                endpoint
                for host_endpoints in self._endpoints.values()
                for endpoint in host_endpoints
            ]
        within = [endpoint for endpoint in endpoints if url.startswith(f"{endpoint.address}/")]
        near = [
            endpoint for endpoint in endpoints if url_origin(endpoint.address) == url_origin(url)
        ]
        return next(iter(within or near), None)

    def _print_warnings(self, http: HttpClient, response: Response) -> None:
        for quoted in _WARNING.findall(response.headers.get("Warning", "")):
            text = http.credentials.scrub_text(re.sub(r"\\(.)", r"\1", quoted))
            shown = "".join(letter if letter.isprintable() else " " for letter in text[:500])
            reported = (url_origin(response.url), shown)
            with self._lock:
                new = reported not in self._warnings
                self._warnings.add(reported)
            if new:
                self.reporter.warn(f"message from {url_host(response.url)}: {shown}")


def _request_token(http: HttpClient, request: Request, login: LoginPair | None) -> bytes | None:
    """Request a token. Returns the body of the response, or None if the request is rejected."""
    with contextlib.closing(http.send_request(request, login)) as response:
        if response.status_code in (400, 401, 403, 404):
            return None
        if not 200 <= response.status_code < 300:
            raise http.refusal_error(request, response)
        return http.body(response, 1 << 20, decode=True)


def _failures(http: HttpClient, response: Response) -> list[RegistryError]:
    with contextlib.suppress(Exception):  # the body is only informational
        data = http.body(response, _ERROR_BYTES, decode=True)
        return decoding.decode_json(data, RegistryErrors).errors[:3]
    return []


def _scopes(url: str, endpoint: HostEndpoint) -> tuple[str, ...]:
    match = re.match(r"(.+)/(?:blobs|manifests|tags|referrers)/", url[len(endpoint.address) + 1 :])
    return (pull_scope(match[1]),) if match else ()


def _add_grant(request: Request, grant: AcceptedHeader | None) -> Request:
    if grant is None:
        return request
    headers = {**request.headers, "Authorization": grant.header}
    return msgspec.structs.replace(request, headers=headers)


def _failure_text(failure: RegistryError) -> str:
    parts = (" ".join(part.split())[:200] for part in (failure.code, failure.message))
    return ": ".join(part for part in parts if part)
