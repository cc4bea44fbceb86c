"""Answers a WWW-Authenticate challenge with an Authorization header.

A login travels over TLS, or stays with the server that asked for it.
"""

from __future__ import annotations

import base64
import itertools
import re
from collections.abc import Callable, Iterable, Mapping
from time import monotonic
from urllib.parse import urlencode, urlsplit

import msgspec

from imgbuild.errors import FetchFailed
from imgbuild.http.credentials import Login, host, origin
from imgbuild.http.request import Request
from imgbuild.registry.logins import RegistryLogin

CLIENT = "imgbuild"
_SOON = 0.8  # the part of a token's life after which it is renewed
_LONGEST = 86_400  # seconds; whatever is said, a token is not kept for longer than this
_REQUIRED = re.compile(r'([A-Za-z_-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))')


class Challenge(msgspec.Struct, frozen=True):
    """What a server wants: the scheme in lower case, and its fields."""

    scheme: str
    fields: dict[str, str]


class AcceptedHeader(msgspec.Struct, frozen=True):
    """A header that a registry accepts, until when (monotonic), and the challenge it answers."""

    header: str
    challenge: Challenge
    until: float | None = None

    @property
    def old(self) -> bool:
        """Whether to ask for another one before it is used again."""
        return self.until is not None and monotonic() >= self.until


class Answer(msgspec.Struct, frozen=True):
    """What a token server answers; one of the two names holds the token."""

    token: str = ""
    access_token: str = ""
    expires_in: int | None = None


def challenges(header: str) -> list[Challenge]:
    """The challenges in WWW-Authenticate, which may have several."""
    found = []
    starts = [
        match.start(1)
        for match in re.finditer(r"(?:^|,)\s*([A-Za-z]+)(?=\s+[A-Za-z_-]+\s*=|\s*$|\s*,)", header)
    ]
    for start, end in itertools.pairwise([*starts, len(header)]):
        scheme, _, rest = header[start:end].partition(" ")
        fields = {
            name.lower(): re.sub(r"\\(.)", r"\1", quoted) if quoted else plain
            for name, quoted, plain in _REQUIRED.findall(rest)
        }
        found.append(Challenge(scheme.lower().rstrip(","), fields))
    return found


def merged(scopes: Iterable[str]) -> tuple[str, ...]:
    """`scopes` merged: one for each resource, with all requested actions."""
    actions: dict[str, dict[str, None]] = {}
    for scope in scopes:
        thing, _, wanted = scope.rpartition(":")
        actions.setdefault(thing, {}).update(dict.fromkeys(wanted.split(",")))
    return tuple(f"{thing}:{','.join(wanted)}" for thing, wanted in actions.items())


def basic(login: Login) -> str:
    """The header for a login."""
    return f"Basic {base64.b64encode(':'.join(login).encode()).decode()}"


def answer(
    asked: Challenge,
    request: Request,
    known: RegistryLogin,
    ask: Callable[[Request, Login | None], bytes | None],
) -> AcceptedHeader | None:
    """The grant for `asked`, which came back for `request`; None if there is nothing to answer.

    `ask` sends one request to the token server: the body of its answer, or None if it refuses.
    """
    if asked.scheme == "basic":
        return AcceptedHeader(basic(known.login), asked) if known.login else None
    realm = asked.fields.get("realm", "")
    if asked.scheme != "bearer" or not realm:
        return None
    if known.bearer:
        return AcceptedHeader(f"Bearer {known.bearer}", asked)
    _refuse_other_ways(realm, request.url)
    _refuse_open_way(realm, request.url, known)
    known_scopes = () if request.anonymous else request.scopes
    wanted = merged([*known_scopes, *asked.fields.get("scope", "").split()])
    service = asked.fields.get("service", "")
    question = msgspec.structs.replace(
        _question(realm, service, wanted, known),
        server=request.server,
        anonymous=request.anonymous,
    )
    body = ask(question, None if known.identity else known.login)
    if body is None:
        return None
    try:
        granted = msgspec.json.decode(body, type=Answer)
    except (msgspec.DecodeError, UnicodeDecodeError):  # their own words may quote the token
        message = f"the token server {origin(realm)} returned no token"
        raise FetchFailed(message, hint="ask the registry's owner") from None
    token = granted.token or granted.access_token
    life = min(granted.expires_in or 0, _LONGEST)
    until = monotonic() + life * _SOON if life else None
    return AcceptedHeader(f"Bearer {token}", asked, until) if token else None


def _refuse_other_ways(realm: str, url: str) -> None:
    """Least of all a file of this machine, whose token would go to anyone who named it."""
    try:
        web = origin(realm).startswith(("http://", "https://")) and urlsplit(realm).hostname
    except ValueError:  # brackets or a port that are none
        web = None
    if not web:
        message = f"{host(url)} names a token server, which is not a web address"
        raise FetchFailed(message, hint="ask the registry's owner; nothing was sent")


def _refuse_open_way(realm: str, url: str, known: RegistryLogin) -> None:
    if urlsplit(realm).scheme != "https" and origin(realm) != origin(url) and known.secrets:
        message = f"{host(url)} sends logins to {origin(realm)}, which has no TLS"
        raise FetchFailed(message, hint="ask the registry's owner; the login was not sent")


def _question(realm: str, service: str, scopes: tuple[str, ...], known: RegistryLogin) -> Request:
    """What the token server is asked: with a login by GET, with an identity token by POST."""
    shown = f"the token server {origin(realm)}"
    if not known.identity:
        pairs = [("service", service)] if service else []
        pairs += [("scope", scope) for scope in scopes]
        query = urlencode(pairs)
        return Request(f"{realm}{'&' if '?' in realm else '?'}{query}", shown=shown)
    form: Mapping[str, str] = {
        "grant_type": "refresh_token",
        "service": service,
        "client_id": CLIENT,
        "scope": " ".join(scopes),
        "refresh_token": known.identity,
    }
    data = urlencode(form).encode()
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    return Request(realm, headers, "POST", lambda: data, shown=shown)
