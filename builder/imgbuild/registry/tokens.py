"""Answers WWW-Authenticate challenges with tokens or basic credentials.

Without TLS, credentials are sent only to the server that requested them.
"""

# A separate module: a protocol.
from __future__ import annotations

import base64
import itertools
import re
from collections.abc import Callable, Iterable, Mapping
from time import monotonic
from urllib.parse import urlencode, urlsplit

import msgspec

from imgbuild.errors import FetchFailed
from imgbuild.http.credentials import LoginPair, url_host, url_origin
from imgbuild.http.request import Request
from imgbuild.registry.logins import RegistryLogin
from imgbuild.system import decoding

CLIENT = "imgbuild"
_RENEWAL_SHARE = 0.8  # the fraction of a token's lifetime after which it is renewed
_LONGEST_VALIDITY = 86_400  # maximum lifetime of a token in seconds, regardless of the response
_CHALLENGE_PARAMETER = re.compile(r'([A-Za-z_-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))')


class AuthChallenge(msgspec.Struct, frozen=True):
    """A challenge in a response: the scheme in lower case, and the parameters."""

    scheme: str
    fields: dict[str, str]


class AcceptedHeader(msgspec.Struct, frozen=True):
    """A header that a server accepted, with its expiry (monotonic time) and challenge."""

    header: str
    challenge: AuthChallenge
    until: float | None = None

    @property
    def is_old(self) -> bool:
        """Return whether the token expires soon and must be renewed."""
        return self.until is not None and monotonic() >= self.until


class TokenAnswer(msgspec.Struct, frozen=True):
    """The response of a token server, which contains the token in one of two fields."""

    token: str = ""
    access_token: str = ""
    expires_in: int | None = None


def parse_challenges(header: str) -> list[AuthChallenge]:
    """Parse the challenges in a WWW-Authenticate header."""
    parsed = []
    starts = [
        match.start(1)
        for match in re.finditer(r"(?:^|,)\s*([A-Za-z]+)(?=\s+[A-Za-z_-]+\s*=|\s*$|\s*,)", header)
    ]
    for start, end in itertools.pairwise([*starts, len(header)]):
        scheme, _, rest = header[start:end].partition(" ")
        fields = {
            name.lower(): re.sub(r"\\(.)", r"\1", quoted) if quoted else plain
            for name, quoted, plain in _CHALLENGE_PARAMETER.findall(rest)
        }
        parsed.append(AuthChallenge(scheme.lower().rstrip(","), fields))
    return parsed


def merge_scopes(scopes: Iterable[str]) -> tuple[str, ...]:
    """Merge `scopes` into one scope for each resource, with all requested actions."""
    actions: dict[str, dict[str, None]] = {}
    for scope in scopes:
        thing, _, requested = scope.rpartition(":")
        actions.setdefault(thing, {}).update(dict.fromkeys(requested.split(",")))
    return tuple(f"{thing}:{','.join(merged_actions)}" for thing, merged_actions in actions.items())


def basic_header(login: LoginPair) -> str:
    """Return the value of the Authorization header for basic authentication."""
    return f"Basic {base64.b64encode(':'.join(login).encode()).decode()}"


def answer_challenge(
    challenge: AuthChallenge,
    request: Request,
    registry_login: RegistryLogin,
    send: Callable[[Request, LoginPair | None], bytes | None],
) -> AcceptedHeader | None:
    """Return the header that answers `challenge`, or None if there are no credentials.

    `send` sends a request to the token server. It returns the body of the response, or None if the
    request is rejected.
    """
    if challenge.scheme == "basic":
        return (
            AcceptedHeader(basic_header(registry_login.login), challenge)
            if registry_login.login
            else None
        )
    realm = challenge.fields.get("realm", "")
    if challenge.scheme != "bearer" or not realm:
        return None
    if registry_login.bearer:
        return AcceptedHeader(f"Bearer {registry_login.bearer}", challenge)
    _refuse_other_schemes(realm, request.url)
    _refuse_unencrypted(realm, request.url, registry_login)
    request_scopes = () if request.anonymous else request.scopes
    scopes = merge_scopes([*request_scopes, *challenge.fields.get("scope", "").split()])
    service = challenge.fields.get("service", "")
    question = msgspec.structs.replace(
        _token_request(realm, service, scopes, registry_login),
        server=request.server,
        anonymous=request.anonymous,
    )
    body = send(question, None if registry_login.identity else registry_login.login)
    if body is None:
        return None
    try:
        granted = decoding.decode_json(body, TokenAnswer)
    except (msgspec.DecodeError, UnicodeDecodeError):  # their messages may contain the token
        message = f"the token server {url_origin(realm)} returned no token"
        raise FetchFailed(message, hint="contact the registry's administrator") from None
    token = granted.token or granted.access_token
    life = min(granted.expires_in or 0, _LONGEST_VALIDITY)
    until = monotonic() + life * _RENEWAL_SHARE if life else None
    return AcceptedHeader(f"Bearer {token}", challenge, until) if token else None


def _refuse_other_schemes(realm: str, url: str) -> None:
    """Raise an error if the URL of the token server is not HTTP (for example, a local file)."""
    try:
        web = url_origin(realm).startswith(("http://", "https://")) and urlsplit(realm).hostname
    except ValueError:  # invalid brackets or port
        web = None
    if not web:
        message = f"the URL of the token server of {url_host(url)} is not HTTP"
        raise FetchFailed(
            message, hint="no credentials were sent; contact the registry's administrator"
        )


def _refuse_unencrypted(realm: str, url: str, registry_login: RegistryLogin) -> None:
    if (
        urlsplit(realm).scheme != "https"
        and url_origin(realm) != url_origin(url)
        and registry_login.secret_texts
    ):
        message = (
            f"{url_host(url)} requests credentials at {url_origin(realm)}, which does not use TLS"
        )
        raise FetchFailed(
            message, hint="no credentials were sent; contact the registry's administrator"
        )


def _token_request(
    realm: str, service: str, scopes: tuple[str, ...], registry_login: RegistryLogin
) -> Request:
    """Return the request to the token server: GET with a password, POST with an identity token."""
    shown = f"the token server {url_origin(realm)}"
    if not registry_login.identity:
        pairs = [("service", service)] if service else []
        pairs += [("scope", scope) for scope in scopes]
        query = urlencode(pairs)
        return Request(f"{realm}{'&' if '?' in realm else '?'}{query}", shown=shown)
    form: Mapping[str, str] = {
        "grant_type": "refresh_token",
        "service": service,
        "client_id": CLIENT,
        "scope": " ".join(scopes),
        "refresh_token": registry_login.identity,
    }
    data = urlencode(form).encode()
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    return Request(realm, headers, "POST", lambda: data, shown=shown)
