"""HTTP requests to registries: endpoints, certificates, logins, tokens and errors.

Tokens and logins are sent only to the endpoint that asked for them. Requests to another host or
port, to which it redirects or where it places an upload, are anonymous, and so are all that follow
from there: otherwise a registry could use the user's logins for other registries.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urljoin, urlsplit

import msgspec

from imgbuild.errors import FetchFailed, IntegrityError
from imgbuild.http.client import Http, Refused
from imgbuild.http.credentials import Login, bare, host, origin
from imgbuild.http.request import Request
from imgbuild.registry import hosts, logins, tokens
from imgbuild.registry.hosts import Endpoint
from imgbuild.registry.tokens import AcceptedHeader
from imgbuild.system.reporter import SILENT, Reporter

if TYPE_CHECKING:
    import ssl

    from imgbuild.http.session import Response, Session

T = TypeVar("T")
READING = ("GET", "HEAD")
_ERROR_BYTES = 64 * 1024
_Key = tuple[str, tuple[str, ...], bool]  # origin, scopes, whether it is anonymous
_WARNING = re.compile(r'\b299 \S+ "((?:[^"\\]|\\.)*)"')


class Failure(msgspec.Struct, frozen=True):
    """One error in a registry's own words."""

    code: str = ""
    message: str = ""


class Failures(msgspec.Struct, frozen=True):
    """The body of a refusal, as the specification has it."""

    errors: list[Failure] = []


class RegistryRefused(Refused):
    """A registry's refusal: its status, its message without the address, and its error codes."""

    reason: str = ""
    codes: tuple[str, ...] = ()


def pulling(name: str) -> str:
    """The scope to read the repository `name`."""
    return f"repository:{name}:pull"


def pushing(name: str) -> str:
    """The scope to read and write the repository `name`."""
    return f"repository:{name}:pull,push"


class RegistryHttp(Http):
    """Requests to registries. Threads may share it.

    With `origin` all requests go to the endpoint that takes pushes, never to a mirror.
    """

    def __init__(
        self,
        *,
        plain_http: Collection[str] = (),
        origin: bool = False,
        offline: bool = False,
        attempts: int = 6,
        first_wait: float = 0.5,
        timeout: tuple[float, float] = (20.0, 60.0),
        reporter: Reporter = SILENT,
    ) -> None:
        super().__init__(
            attempts=attempts,
            first_wait=first_wait,
            timeout=timeout,
            offline=offline,
            reporter=reporter,
        )
        self.reporter = reporter
        # Registries to which a blob in one piece did not come through.
        self.fragile: set[str] = set()
        self._plain_http = frozenset(plain_http)
        self._origin = origin
        self._endpoints: dict[str, tuple[Endpoint, ...]] = {}
        self._grants: dict[_Key, AcceptedHeader] = {}
        self._told: set[tuple[str, str]] = set()
        self._contexts: dict[hosts.Certificates, ssl.SSLContext] = {}
        self._granting = threading.Lock()
        self._describing = threading.Lock()

    # -- what the client uses

    def endpoints(self, registry: str, capability: str) -> tuple[Endpoint, ...]:
        """The endpoints of `registry` for `capability`, in order; only one takes pushes.

        FetchFailed if there is none.
        """
        with self._describing:
            if registry not in self._endpoints:
                self._endpoints[registry] = hosts.endpoints(
                    registry, self._plain_http, reporter=self.reporter
                )
        required = hosts.PUSH if self._origin else capability
        endpoints = [
            endpoint for endpoint in self._endpoints[registry] if required in endpoint.capabilities
        ]
        if not endpoints:
            message = f"no endpoint of {registry} may {capability}"
            raise FetchFailed(message, hint="see `capabilities` in its hosts.toml")
        return tuple(endpoints[:1] if required == hosts.PUSH else endpoints)

    def ask(
        self,
        registry: str,
        capability: str,
        request: Request,
        read: Callable[[Response], T],
    ) -> T:
        """What `read` makes of the answer to `request`, whose url is a path below `/v2`."""
        return self.first_result(
            registry, capability, lambda endpoint: self.retrying(at(endpoint, request), read)
        )

    def first_result(self, registry: str, capability: str, use: Callable[[Endpoint], T]) -> T:
        """The result of `use` for the first endpoint that serves; raises the last one's failure."""
        endpoints = self.endpoints(registry, capability)
        for endpoint in endpoints[:-1]:
            try:
                return use(endpoint)
            except (FetchFailed, IntegrityError) as failure:
                self.reporter.detail(f"{failure.message}; the next endpoint of {registry} is asked")
        return use(endpoints[-1])

    def location(self, response: Response, shown: str) -> str:
        """The address in `Location`. FetchFailed if a request may not be sent there."""
        named = response.headers.get("Location", "")
        if not named:
            message = f"{shown}: the registry does not say where to continue (no Location)"
            raise FetchFailed(message)
        try:
            here, place = urlsplit(response.url), urlsplit(urljoin(response.url, named))
            origin(place.geturl())  # its port may be none
            downgraded = (here.scheme, place.scheme) == ("https", "http")
            if downgraded and here.hostname == place.hostname:
                # A registry behind a proxy that ends TLS often does not know that there is one.
                place = place._replace(scheme="https", netloc=here.netloc)
        except ValueError:
            message = f"{shown}: the registry redirects to an invalid address"
            raise FetchFailed(message) from None
        if place.scheme not in ("http", "https") or not place.hostname:
            message = f"{shown}: the registry redirects to something other than http or https"
            raise FetchFailed(message)
        if here.scheme == "https" and place.scheme != "https":
            message = f"{shown}: the registry redirects to {place.hostname}, which is not encrypted"
            raise FetchFailed(message)
        return place.geturl()

    @contextlib.contextmanager
    def send(self, request: Request) -> Iterator[Response]:
        """One try, as `Http.send`, of an address that an endpoint gave or that is below one."""
        endpoint = self._endpoint(bare(request.url))
        if endpoint is not None and not request.server:
            scopes = request.scopes or _scopes(request.url, endpoint)
            request = msgspec.structs.replace(request, scopes=scopes, server=endpoint.address)
        with super().send(self._led(request)) as response:
            self._pass_on(response)
            yield response

    # -- inside

    def _led(self, request: Request) -> Request:
        """`request`, made anonymous if its address is not on its endpoint's server."""
        away = request.server and origin(request.url) != origin(request.server)
        return msgspec.structs.replace(request, anonymous=True) if away else request

    def _pass_on(self, response: Response) -> None:
        """Print warnings in the registry's answer, each once."""
        for quoted in _WARNING.findall(response.headers.get("Warning", "")):
            text = self.credentials.scrub(re.sub(r"\\(.)", r"\1", quoted))
            shown = "".join(letter if letter.isprintable() else " " for letter in text[:500])
            reported = (origin(response.url), shown)
            with self._describing:
                new = reported not in self._told
                self._told.add(reported)
            if new:
                self.reporter.warn(f"{host(response.url)} says: {shown}")

    def _send(self, request: Request, login: Login | None) -> Response:
        if request.anonymous and request.method not in READING:
            return super()._send(request, None)
        endpoint = None if request.anonymous else self._endpoint(request.url)
        headers = {**request.headers, **(endpoint.headers if endpoint else {})}
        request = msgspec.structs.replace(request, headers=headers)
        key = (origin(request.url), request.scopes, request.anonymous)
        grant = self._renewed(request, key, login)
        response = super()._send(_with(request, grant), None)
        challenge_header = response.headers.get("WWW-Authenticate", "")
        if response.status_code != 401:
            return response
        if not challenge_header:  # against the specification, so only a plain login can be meant
            plain = self._registry_login(request.url, login).login
            if grant is not None or request.anonymous or plain is None:
                return response
            response.close()
            return super()._send(request, plain)
        with contextlib.ExitStack() as stack, self._granting:
            stack.callback(response.close)
            accepted = self._grants.get(key)
            if accepted is None or accepted is grant:
                accepted = self._authorize(request, tokens.challenges(challenge_header), login)
            if accepted is None:
                stack.pop_all()
                return response
            self._grants[key] = accepted
        return super()._send(_with(request, accepted), None)

    def _renewed(self, request: Request, key: _Key, login: Login | None) -> AcceptedHeader | None:
        """The grant for `key`, renewed if it expires soon; None if none was needed."""
        grant = self._grants.get(key)
        if grant is None or not grant.old:
            return grant
        with self._granting:
            if self._grants[key] is grant:
                renewed = self._authorize(request, [grant.challenge], login)
                self._grants[key] = renewed or msgspec.structs.replace(grant, until=None)
            return self._grants[key]

    def _authorize(
        self, request: Request, challenges: list[tokens.Challenge], login: Login | None
    ) -> AcceptedHeader | None:
        """What answers the first of the challenges that can be answered; None if there is none."""
        registry_login = (
            logins.RegistryLogin()
            if request.anonymous
            else self._registry_login(request.url, login)
        )
        for secret in registry_login.secrets:
            self.credentials.hide(secret)
        for challenge in sorted(challenges, key=lambda candidate: candidate.scheme != "bearer"):
            grant = tokens.answer(challenge, request, registry_login, self._ask_token_server)
            if grant is not None:
                self.credentials.hide(grant.header.partition(" ")[2])
                return grant
        return None

    def _registry_login(self, url: str, login: Login | None) -> logins.RegistryLogin:
        """What to log in with at `url`; `login` is what netrc or keyring has for it."""
        endpoint, registry_login = self._endpoint(url), logins.find(host(url), self.reporter)
        if (
            registry_login == logins.RegistryLogin()
            and endpoint is not None
            and not endpoint.mirror
        ):
            registry_login = logins.find(endpoint.host, self.reporter)
        if registry_login == logins.RegistryLogin() and login is not None:
            registry_login = logins.RegistryLogin(login)
        return registry_login

    def _ask_token_server(self, request: Request, login: Login | None) -> bytes | None:
        with contextlib.closing(super()._send(request, login)) as response:
            if response.status_code in (400, 401, 403, 404):
                return None
            if not 200 <= response.status_code < 300:
                raise super()._refusal(response, request)
            return self.body(response, 1 << 20, decode=True)

    def _endpoint(self, url: str) -> Endpoint | None:
        """The endpoint that an address belongs to, among those of the hosts that were asked for."""
        with self._describing:
            endpoints = [
                endpoint
                for host_endpoints in self._endpoints.values()
                for endpoint in host_endpoints
            ]
        within = [endpoint for endpoint in endpoints if url.startswith(f"{endpoint.address}/")]
        near = [endpoint for endpoint in endpoints if origin(endpoint.address) == origin(url)]
        return next(iter(within or near), None)

    def _session(self, request: Request) -> Session:
        from imgbuild.http import session

        endpoint = self._endpoint(f"{request.server}/") if request.server else None
        shown = endpoint.certificates if endpoint else hosts.Certificates()
        if request.anonymous:  # the client's own certificate is a login too
            shown = msgspec.structs.replace(shown, own=())
        if shown == hosts.Certificates():
            return super()._session(request)
        sessions: dict[hosts.Certificates, Session]
        sessions = self._local.__dict__.setdefault("sessions", {})
        if shown not in sessions:
            with self._describing:
                if shown not in self._contexts:
                    self._contexts[shown] = hosts.context(shown)
            sessions[shown] = session.session(self._contexts[shown])
        return sessions[shown]

    def _refusal(self, response: Response, request: Request) -> Exception:
        from imgbuild.http.session import Transient

        self._pass_on(response)
        failure = super()._refusal(response, request)
        failures = self._failures(response)
        words = self.credentials.scrub("; ".join(_worded(entry) for entry in failures))
        if isinstance(failure, Transient):
            failure.reason += f" ({words})" if words else ""
            return failure
        if not isinstance(failure, Refused):
            return failure
        hint = failure.hint
        if failure.denied:
            hint = f"docker login {host(request.url)}, with an account that may do this"
            if request.anonymous:
                hint = (
                    f"{host(request.server)} sent it to {host(request.url)}, which is not given"
                    " the login"
                )
        message = f"{failure.message}: {words}" if words else failure.message
        refusal = RegistryRefused(message, status=failure.status, hint=hint, total=failure.total)
        refusal.reason = message.removeprefix(f"{request.place}: ")
        refusal.codes = tuple(entry.code for entry in failures)
        return refusal

    def _failures(self, response: Response) -> list[Failure]:
        """The errors in the body of a refusal; none if it holds something else."""
        with contextlib.suppress(Exception):  # whatever it is, it is only there to explain
            data = self.body(response, _ERROR_BYTES, decode=True)
            return msgspec.json.decode(data, type=Failures).errors[:3]
        return []


def at(endpoint: Endpoint, request: Request) -> Request:
    """`request`, whose url is a path, at an endpoint."""
    return msgspec.structs.replace(request, url=endpoint.url(request.url), server=endpoint.address)


def _scopes(url: str, endpoint: Endpoint) -> tuple[str, ...]:
    """The scope of a complete address: to read its repository."""
    match = re.match(r"(.+)/(?:blobs|manifests|tags|referrers)/", url[len(endpoint.address) + 1 :])
    return (pulling(match[1]),) if match else ()


def _with(request: Request, grant: AcceptedHeader | None) -> Request:
    if grant is None:
        return request
    headers = {**request.headers, "Authorization": grant.header}
    return msgspec.structs.replace(request, headers=headers)


def _worded(failure: Failure) -> str:
    parts = (" ".join(part.split())[:200] for part in (failure.code, failure.message))
    return ": ".join(part for part in parts if part)
