"""Advisories from a server with OSV's API (google.github.io/osv.dev/api).

`POST /v1/querybatch` lists the advisories about a version, `GET /v1/vulns/ID` returns one of them.
Both are kept in the cache: the first for a day, the second until the advisory is modified.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

import msgspec

from imgbuild import codec
from imgbuild.cache.context import Context
from imgbuild.cves import records
from imgbuild.cves.installed import InstalledSource
from imgbuild.cves.osv_advisories import advisories
from imgbuild.cves.records import ID, LIMIT, OsvRecord
from imgbuild.cves.severity import Rating, highest
from imgbuild.cves.source import Advisory, SourceAnswer
from imgbuild.errors import FetchFailed, InputError
from imgbuild.http.client import Refused
from imgbuild.http.credentials import redact
from imgbuild.http.request import Request
from imgbuild.system import threads
from imgbuild.system.boundary import NONSENSE

if TYPE_CHECKING:
    from imgbuild.http.session import Response

DEFAULT = "https://api.osv.dev"
VARIABLE = "IMGBUILD_OSV"
NOT_FOUND = 404
BATCH = 500  # questions of one request; the server takes up to 1,000
PAGES = 100  # of the answer about one package
KEPT = datetime.timedelta(days=1)
QUESTION, RECORD = "osv-query-1", "osv-record-1"  # kinds of facts
HEADERS = {"Content-Type": "application/json", "Accept": "application/json"}


class _Named(msgspec.Struct, frozen=True):
    id: str
    modified: str = ""


class _Result(msgspec.Struct, frozen=True):
    vulns: tuple[_Named, ...] | None = None
    next_page_token: str | None = None


class _Batch(msgspec.Struct, frozen=True):
    results: tuple[_Result, ...]


class _KeptAnswer(msgspec.Struct, frozen=True):
    asked: datetime.datetime
    vulns: tuple[_Named, ...]


class OsvServer:
    """A server with OSV's API at `address`, asked through the cache of `context`."""

    def __init__(self, address: str | None, context: Context, now: datetime.datetime) -> None:
        """`address` is by default $IMGBUILD_OSV, else OSV's; InputError if it is no HTTP URL."""
        given = address or os.environ.get(VARIABLE) or DEFAULT
        if not _is_address(given):
            message = f"{given.rpartition('@')[2]}: not an HTTP URL"  # without a login
            raise InputError(message, hint=f"name a server with OSV's API, such as {DEFAULT}")
        self._address = given.rstrip("/")
        self._context = context
        self._now = now

    def find(self, packages: Sequence[InstalledSource]) -> SourceAnswer:
        """The advisories about `packages`; FetchFailed if the server does not answer."""
        answers = self._answers({one.key: one for one in packages})
        wanted = {one.id: one for answer in answers.values() for one in answer.vulns}
        with self._context.reporter.step(f"reading {len(wanted)} advisories"):
            read = threads.each(list(wanted.values()), lambda one, _: self._record(one), threads=8)
        known = dict(zip(wanted, read, strict=True))
        oldest = min((answer.asked for answer in answers.values()), default=self._now)
        found = [
            one
            for package in packages
            for named in answers[package.key].vulns
            if not known[named.id].withdrawn
            for one in advisories(known[named.id], package, redact(self._address))
        ]
        of = f"{redact(self._address)}, {oldest:%Y-%m-%d}"
        return SourceAnswer(of=of, advisories=self._rated(found))

    def _rated(self, found: Sequence[Advisory]) -> tuple[Advisory, ...]:
        """`found`; advisories without a severity get that of their CVE.

        Debian's advisories often have none; the server may have the CVE itself.
        """
        rated = {(one.package.key, name) for one in found for name in one.ids if _has_rating(one)}
        vague = {
            name: _Named(id=name)
            for one in found
            if not any((one.package.key, other) in rated for other in one.ids)
            for name in one.ids
            if name.startswith("CVE-")
        }
        read = threads.each(list(vague.values()), lambda one, _: self._optional(one), threads=8)
        known = dict(zip(vague, read, strict=True))
        return tuple(_with_rating(one, [known.get(name) for name in one.ids]) for one in found)

    # -- which advisories

    def _answers(
        self, packages: dict[tuple[str, str, str], InstalledSource]
    ) -> dict[tuple[str, str, str], _KeptAnswer]:
        """What the cache or the server answers about each of `packages`."""
        found = {}
        for key in packages:
            kept = self._kept(key)
            if kept is not None:
                found[key] = kept
        due = [key for key in packages if key not in found]
        for at in range(0, len(due), BATCH):
            part = due[at : at + BATCH]
            for key, vulns in zip(part, self._ask(part), strict=True):
                answer = _KeptAnswer(asked=self._now, vulns=vulns)
                self._context.store.put_fact(
                    QUESTION, self._question(key), msgspec.json.encode(answer)
                )
                found[key] = answer
        return found

    def _question(self, key: tuple[str, str, str]) -> str:
        return msgspec.json.encode((self._address, *key)).decode()

    def _kept(self, key: tuple[str, str, str]) -> _KeptAnswer | None:
        """The answer in the cache, if it is less than a day old; offline, of any age."""
        data = self._context.store.fact(QUESTION, self._question(key))
        if data is None:
            return None
        try:
            found = msgspec.json.decode(data, type=_KeptAnswer)
        except msgspec.DecodeError:  # of another form: it is asked for again
            return None
        recent = datetime.timedelta() <= self._now - found.asked < KEPT
        return found if recent or self._context.http.offline else None

    def _ask(self, keys: Sequence[tuple[str, str, str]]) -> list[tuple[_Named, ...]]:
        """The server's answer about each of `keys`, all of its pages."""
        found: list[list[_Named]] = [[] for _ in keys]
        left = dict.fromkeys(range(len(keys)), "")
        for _ in range(PAGES):
            if not left:
                return [tuple(vulns) for vulns in found]
            batch = self._batch([_query(keys[place], token) for place, token in left.items()])
            if len(batch.results) != len(left):
                given, asked = len(batch.results), len(left)
                message = f"{redact(self._address)}: {given} answers to {asked} questions"
                raise FetchFailed(message, hint=NONSENSE)
            following = {}
            for place, result in zip(left, batch.results, strict=True):
                found[place] += self._valid(result.vulns or ())
                if result.next_page_token:
                    following[place] = result.next_page_token
            left = following
        message = f"{redact(self._address)}: more than {PAGES} pages about one package"
        raise FetchFailed(message, hint=NONSENSE)

    def _valid(self, vulns: Iterable[_Named]) -> Iterable[_Named]:
        for one in vulns:
            if ID.fullmatch(one.id) is None:
                message = f"{redact(self._address)} names an advisory {one.id[:80]!r}"
                raise FetchFailed(message, hint=NONSENSE)
            yield one

    def _batch(self, queries: Sequence[object]) -> _Batch:
        place = f"{self._address}/v1/querybatch"
        body = msgspec.json.encode({"queries": queries})
        data = self._fetch(Request(place, HEADERS, "POST", body=lambda: body))
        return codec.decode(data, _Batch, file=redact(place), what="answer of OSV", hint=NONSENSE)

    # -- the advisories themselves

    def _record(self, named: _Named) -> OsvRecord:
        key = msgspec.json.encode((self._address, named.id, named.modified)).decode()
        place = f"{self._address}/v1/vulns/{quote(named.id, safe='')}"
        data = self._context.store.fact(RECORD, key) if named.modified else None
        if data is not None:
            return records.decode(data, redact(place), hint=NONSENSE)
        data = self._fetch(Request(place, {"Accept": "application/json"}))
        found = records.decode(data, redact(place), hint=NONSENSE)
        if named.id not in found.ids:
            message = f"{redact(place)}: the answer is another advisory, {found.id}"
            raise FetchFailed(message, hint=NONSENSE)
        self._context.store.put_fact(RECORD, key, data)
        return found

    def _optional(self, named: _Named) -> OsvRecord | None:
        """The advisory, kept for a day; None if the server has none, or offline the cache."""
        key = msgspec.json.encode((self._address, named.id, f"{self._now:%Y-%m-%d}")).decode()
        data = self._context.store.fact(RECORD, key)
        place = f"{self._address}/v1/vulns/{quote(named.id, safe='')}"
        if data is None:
            if self._context.http.offline:
                return None
            try:
                data = self._fetch(Request(place, {"Accept": "application/json"}))
            except Refused as refused:
                if refused.status != NOT_FOUND:
                    raise
                data = b""
            if data:
                records.decode(data, redact(place), hint=NONSENSE)
            self._context.store.put_fact(RECORD, key, data)
        return records.decode(data, redact(place), hint=NONSENSE) if data else None

    def _fetch(self, request: Request) -> bytes:
        http = self._context.http
        if http.offline:
            message = f"{request.place}: the answer is not in the cache, and --offline is set"
            hint = "name a report of a scanner with --report, or run once without --offline"
            raise FetchFailed(message, hint=hint)

        def _read(response: Response) -> bytes:
            return http.body(response, LIMIT, decode=True)

        return http.retrying(request, _read)


def _is_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # brackets that do not match, or a port that is no number
        return False


def _has_rating(one: Advisory) -> bool:
    return one.severity is not Rating.UNKNOWN


def _with_rating(one: Advisory, found: Sequence[OsvRecord | None]) -> Advisory:
    """`one` with the severity of the records `found` of the same vulnerability, if it has none."""
    if _has_rating(one):
        return one
    package = one.package
    said = [each.rating(package.ecosystem, package.name) for each in found if each is not None]
    scores = [score for _, score in said if score is not None]
    return msgspec.structs.replace(
        one,
        severity=highest(rating for rating, _ in said),
        score=max(scores, default=None),
    )


def _query(key: tuple[str, str, str], token: str) -> dict[str, object]:
    ecosystem, name, version = key
    query: dict[str, object] = {
        "package": {"ecosystem": ecosystem, "name": name},
        "version": version,
    }
    return {**query, "page_token": token} if token else query
