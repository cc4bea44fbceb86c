"""Queries a server with the OSV API for advisories, and caches the responses.

`POST /v1/querybatch` lists the advisories about versions, and `GET /v1/vulns/ID` returns an
advisory. Lists are cached for a day, and advisories until they are modified.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

import msgspec

from imgbuild import codec
from imgbuild.cache.context import Context
from imgbuild.cves import records
from imgbuild.cves.installed import GIT, REPOSITORIES, InstalledSource
from imgbuild.cves.records import ID, LIMIT, OsvRecord, record_advisories
from imgbuild.cves.severity import Rating, highest_rating
from imgbuild.cves.source import Advisory, SourceAnswer
from imgbuild.errors import FetchFailed, InputError
from imgbuild.http.client import RequestRefused
from imgbuild.http.credentials import redact_url
from imgbuild.http.request import Request
from imgbuild.system import decoding, threads
from imgbuild.system.boundary import NONSENSE

if TYPE_CHECKING:
    from imgbuild.http.session import Response

DEFAULT = "https://api.osv.dev"
VARIABLE = "IMGBUILD_OSV"
NOT_FOUND_STATUS = 404
BATCH = 500  # queries in one request; the server accepts up to 1,000
PAGES = 100  # of the response about one package
CACHE_AGE = datetime.timedelta(days=1)
QUERY, RECORD = "osv-query-1", "osv-record-1"  # kinds of facts
HEADERS = {"Content-Type": "application/json", "Accept": "application/json"}


class _NamedAdvisory(msgspec.Struct, frozen=True):
    id: str
    modified: str = ""


class _QueryResult(msgspec.Struct, frozen=True):
    vulns: tuple[_NamedAdvisory, ...] | None = None
    next_page_token: str | None = None


class _BatchResponse(msgspec.Struct, frozen=True):
    results: tuple[_QueryResult, ...]


class _CachedAnswer(msgspec.Struct, frozen=True):
    asked: datetime.datetime
    vulns: tuple[_NamedAdvisory, ...]


class OsvServer:
    """A server with the OSV API. Responses are cached in the cache of `context`."""

    def __init__(self, address: str | None, context: Context, now: datetime.datetime) -> None:
        """`address` defaults to $IMGBUILD_OSV, or else to the public OSV server.

        Raises InputError if the address is not an HTTP URL.
        """
        given = address or os.environ.get(VARIABLE) or DEFAULT
        if not _is_address(given):
            message = f"{given.rpartition('@')[2]}: not an HTTP URL"  # without credentials
            raise InputError(
                message, hint=f"specify the URL of a server with the OSV API, such as {DEFAULT}"
            )
        self._address = given.rstrip("/")
        self._context = context
        self._now = now

    def find_advisories(self, packages: Sequence[InstalledSource]) -> SourceAnswer:
        """Return advisories about `packages`. Raises FetchFailed if the server does not respond."""
        answers = self._answers({package.key: package for package in packages})
        references = {
            reference.id: reference for answer in answers.values() for reference in answer.vulns
        }
        with self._context.reporter.step(f"reading {len(references)} advisories"):
            read = threads.run_for_each(
                list(references.values()), lambda reference, _: self._record(reference), threads=8
            )
        by_id = dict(zip(references, read, strict=True))
        return self._source_answer(packages, answers, by_id)

    def cached_advisories(self, packages: Sequence[InstalledSource]) -> SourceAnswer:
        """Return cached advisories about `packages`, regardless of age, for an offline context."""
        answers: dict[tuple[str, str, str], _CachedAnswer] = {}
        by_id: dict[str, OsvRecord] = {}
        unqueried = []
        for package in packages:
            answer = self._cached_response(package.key)
            try:
                if answer is not None:
                    by_id |= {named.id: self._record(named) for named in answer.vulns}
                    answers[package.key] = answer
            except FetchFailed:  # one of its advisories is not in the cache
                answer = None
            if answer is None:
                unqueried.append(package)
        known = [package for package in packages if package.key in answers]
        return msgspec.structs.replace(
            self._source_answer(known, answers, by_id), unqueried=tuple(unqueried)
        )

    def _source_answer(
        self,
        packages: Sequence[InstalledSource],
        answers: Mapping[tuple[str, str, str], _CachedAnswer],
        by_id: Mapping[str, OsvRecord],
    ) -> SourceAnswer:
        """Return the advisories about `packages` in `answers`. `by_id` maps IDs to records."""
        oldest = min((answer.asked for answer in answers.values()), default=self._now)
        matches = [
            advisory
            for package in packages
            for named in answers[package.key].vulns
            if not by_id[named.id].withdrawn
            for advisory in record_advisories(by_id[named.id], package, redact_url(self._address))
        ]
        of = f"{redact_url(self._address)}, {oldest:%Y-%m-%d}"
        return SourceAnswer(of=of, advisories=self._add_ratings(matches))

    def _add_ratings(self, matches: Sequence[Advisory]) -> tuple[Advisory, ...]:
        """Add severities to advisories in `matches` without a severity.

        Debian's advisories often have no severity, but the server can have a record of the CVE.
        """
        rated = {
            (advisory.package.key, name)
            for advisory in matches
            for name in advisory.ids
            if _has_rating(advisory)
        }
        vague = {
            name: _NamedAdvisory(id=name)
            for advisory in matches
            if not any((advisory.package.key, other) in rated for other in advisory.ids)
            for name in advisory.ids
            if name.startswith("CVE-")
        }
        read = threads.run_for_each(
            list(vague.values()), lambda reference, _: self._optional_record(reference), threads=8
        )
        by_name = dict(zip(vague, read, strict=True))
        return tuple(
            _add_rating(advisory, [by_name.get(name) for name in advisory.ids])
            for advisory in matches
        )

    # -- queries for advisories

    def _answers(
        self, packages: dict[tuple[str, str, str], InstalledSource]
    ) -> dict[tuple[str, str, str], _CachedAnswer]:
        answers = {}
        for key in packages:
            cached = self._cached_response(key)
            if cached is not None:
                answers[key] = cached
        missing = [key for key in packages if key not in answers]
        for at in range(0, len(missing), BATCH):
            part = missing[at : at + BATCH]
            for key, vulns in zip(part, self._query_server(part), strict=True):
                answer = _CachedAnswer(asked=self._now, vulns=vulns)
                self._context.store.put_fact(
                    QUERY, self._query_key(key), msgspec.json.encode(answer)
                )
                answers[key] = answer
        return answers

    def _query_key(self, key: tuple[str, str, str]) -> str:
        return msgspec.json.encode((self._address, *key)).decode()

    def _cached_response(self, key: tuple[str, str, str]) -> _CachedAnswer | None:
        """Return the cached response if it is less than a day old or if the context is offline."""
        data = self._context.store.fact(QUERY, self._query_key(key))
        if data is None:
            return None
        try:
            answer = decoding.decode_json(data, _CachedAnswer)
        except msgspec.DecodeError:  # invalid: request again
            return None
        recent = datetime.timedelta() <= self._now - answer.asked < CACHE_AGE
        return answer if recent or self._context.http.offline else None

    def _query_server(
        self, keys: Sequence[tuple[str, str, str]]
    ) -> list[tuple[_NamedAdvisory, ...]]:
        answers: list[list[_NamedAdvisory]] = [[] for _ in keys]
        left = dict.fromkeys(range(len(keys)), "")
        for _ in range(PAGES):
            if not left:
                return [tuple(vulns) for vulns in answers]
            batch = self._batch(
                [_query_document(keys[place], token) for place, token in left.items()]
            )
            if len(batch.results) != len(left):
                given, expected = len(batch.results), len(left)
                message = (
                    f"{redact_url(self._address)}: received {given} responses to {expected} queries"
                )
                raise FetchFailed(message, hint=NONSENSE)
            following = {}
            for place, result in zip(left, batch.results, strict=True):
                answers[place] += self._valid_names(result.vulns or ())
                if result.next_page_token:
                    following[place] = result.next_page_token
            left = following
        message = (
            f"{redact_url(self._address)}: the advisories of one package have more than {PAGES}"
            " pages"
        )
        raise FetchFailed(message, hint=NONSENSE)

    def _valid_names(self, vulns: Iterable[_NamedAdvisory]) -> Iterable[_NamedAdvisory]:
        for reference in vulns:
            if ID.fullmatch(reference.id) is None:
                advisory = f"the invalid advisory ID {reference.id[:80]!r}"
                message = f"{redact_url(self._address)} lists {advisory}"
                raise FetchFailed(message, hint=NONSENSE)
            yield reference

    def _batch(self, queries: Sequence[object]) -> _BatchResponse:
        place = f"{self._address}/v1/querybatch"
        body = msgspec.json.encode({"queries": queries})
        data = self._fetch_bytes(Request(place, HEADERS, "POST", body=lambda: body))
        return codec.decode(
            data, _BatchResponse, file=redact_url(place), what="OSV response", hint=NONSENSE
        )

    # -- advisories

    def _record(self, named: _NamedAdvisory) -> OsvRecord:
        key = msgspec.json.encode((self._address, named.id, named.modified)).decode()
        place = f"{self._address}/v1/vulns/{quote(named.id, safe='')}"
        data = self._context.store.fact(RECORD, key) if named.modified else None
        if data is not None:
            return records.decode_record(data, redact_url(place), hint=NONSENSE)
        data = self._fetch_bytes(Request(place, {"Accept": "application/json"}))
        record = records.decode_record(data, redact_url(place), hint=NONSENSE)
        if named.id not in record.all_ids:
            message = f"{redact_url(place)}: the response contains another advisory, {record.id}"
            raise FetchFailed(message, hint=NONSENSE)
        self._context.store.put_fact(RECORD, key, data)
        return record

    def _optional_record(self, named: _NamedAdvisory) -> OsvRecord | None:
        """Return the advisory, which is cached for a day.

        Returns None if the server does not have the advisory, or if the context is offline and the
        advisory is not cached.
        """
        key = msgspec.json.encode((self._address, named.id, f"{self._now:%Y-%m-%d}")).decode()
        data = self._context.store.fact(RECORD, key)
        place = f"{self._address}/v1/vulns/{quote(named.id, safe='')}"
        if data is None:
            if self._context.http.offline:
                return None
            try:
                data = self._fetch_bytes(Request(place, {"Accept": "application/json"}))
            except RequestRefused as refused:
                if refused.status != NOT_FOUND_STATUS:
                    raise
                data = b""
            if data:
                records.decode_record(data, redact_url(place), hint=NONSENSE)
            self._context.store.put_fact(RECORD, key, data)
        return records.decode_record(data, redact_url(place), hint=NONSENSE) if data else None

    def _fetch_bytes(self, request: Request) -> bytes:
        http = self._context.http
        if http.offline:
            message = f"{request.place}: the response is not in the cache, and --offline is set"
            hint = "pass a scanner report with --report, or run the command without --offline"
            raise FetchFailed(message, hint=hint)

        def _read_body(response: Response) -> bytes:
            return http.body(response, LIMIT, decode=True)

        return http.retry_request(request, _read_body)


def _is_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # unbalanced brackets or an invalid port
        return False


def _has_rating(advisory: Advisory) -> bool:
    return advisory.severity is not Rating.UNKNOWN


def _add_rating(advisory: Advisory, osv_records: Sequence[OsvRecord | None]) -> Advisory:
    """Add the severity from `osv_records` to `advisory` if `advisory` has none."""
    if _has_rating(advisory):
        return advisory
    package = advisory.package
    ratings = [
        each.package_rating(package.ecosystem, package.name)
        for each in osv_records
        if each is not None
    ]
    scores = [score for _, score in ratings if score is not None]
    return msgspec.structs.replace(
        advisory,
        severity=highest_rating(rating for rating, _ in ratings),
        score=max(scores, default=None),
    )


def _query_document(key: tuple[str, str, str], token: str) -> dict[str, object]:
    ecosystem, name, version = key
    if ecosystem == GIT:  # by the URL of the repository, and the tag of the release
        name, version = REPOSITORIES[name], f"v{version}"
    query: dict[str, object] = {
        "package": {"ecosystem": ecosystem, "name": name},
        "version": version,
    }
    return {**query, "page_token": token} if token else query
