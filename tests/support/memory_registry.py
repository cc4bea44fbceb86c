"""Provides a registry in memory that follows the distribution specification 1.1, with faults.

The fields of `Registry` disable features and add faults. `requests` contains the received requests.
`docker_registry` provides a real registry.

    with memory_registry.serve(Registry(referrers_api=False)) as registry:
        registry.faults.append(Fault("PUT .*/uploads/", cut_request=1000))
        Client(first_wait=0.001).upload(registry.repository("me/x"), source)
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

import pytest

from imgbuild.registry.image_reference import ImageReference, Repository
from tests.support.memory_registry_http import serve
from tests.support.memory_registry_values import (
    INDEX,
    ROUTES,
    SECRET,
    Answer,
    Fault,
    ReceivedRequest,
    Session,
    basic_header,
    error_answer,
    referrer_entry,
    required_permissions,
    scope_actions,
    sha256_digest,
)

__all__ = [
    "INDEX",
    "SECRET",
    "Answer",
    "Fault",
    "ReceivedRequest",
    "Registry",
    "change_header",
    "image_reference",
    "isolate_logins",
    "serve",
    "sha256_digest",
]


@dataclass
class Registry:
    """The contents of a registry, its features and its faults."""

    blobs: dict[tuple[str, str], bytes] = field(default_factory=dict)
    manifests: dict[tuple[str, str], tuple[bytes, str]] = field(default_factory=dict)
    tags: dict[tuple[str, str], str] = field(default_factory=dict)
    sessions: dict[str, Session] = field(default_factory=dict)
    begun: int = 0  # uploads so far
    # Manners.
    referrers_api: bool = True
    filters: bool = True  # referrers by type
    mounts: bool = True
    deletes: bool = True
    verifies: bool = True  # refuses bytes that do not match their digest
    keeps_parts: bool = True  # bytes of a request that broke stay in the upload
    heads: bool = True  # HEAD of a manifest gets the response to GET
    tells_digest: bool = True
    ranges: bool = True
    page: int | None = None  # entries of a page
    chunk_minimum: int = 0
    largest: int | None = None  # accepted bytes of a body
    locations: str = "absolute"  # or "relative", "foreign"
    redirects: bool = False  # blobs lie on another server
    # Logins: "" for nobody, "basic", or "bearer" (with `login`, or `identity`, or for anybody).
    auth: str = ""
    login: tuple[str, str] | None = None
    identity: str = ""
    token_uses: int | None = None  # requests for which a token is valid
    token_life: int | None = None  # its lifetime in seconds, as announced
    realm: str = ""
    faults: list[Fault] = field(default_factory=list)
    # What happened.
    requests: list[ReceivedRequest] = field(default_factory=list)
    granted: list[tuple[str, ...]] = field(default_factory=list)
    tokens: dict[str, tuple[tuple[str, ...], int | None]] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)
    host: str = ""
    storage: str = ""
    scheme: str = "http"

    def repository(self, name: str) -> Repository:
        """The repository `name` of this registry."""
        return Repository(self.host, name)

    def received_requests(self, where: str) -> list[ReceivedRequest]:
        """The requests whose "METHOD /path?query" matches `where`."""
        return [
            request
            for request in self.requests
            if re.search(where, f"{request.method} {request.path}")
        ]

    # -- responses

    def fault(self, request: ReceivedRequest) -> Fault | None:
        """The fault for a request, if any. Each fault applies `times` times."""
        with self.lock:
            for fault in self.faults:
                if fault.times and re.search(fault.where, f"{request.method} {request.path}"):
                    fault.times -= 1
                    return fault
        return None

    def answer(self, request: ReceivedRequest, body: bytes) -> Answer:
        """Handle a request."""
        parts = urlsplit(request.path)
        query = dict(parse_qsl(parts.query))
        ways = [(kind, re.fullmatch(way, unquote(parts.path))) for kind, way in ROUTES]
        kind, match = next((each for each in ways if each[1]), ("", None))
        if match is None:
            return error_answer(404, "NOT_FOUND")
        with self.lock:
            free = kind in ("token", "stored") or request.server == "storage"
            refused = None if free else self._refused(request, match.groupdict(), query)
            if refused is not None:
                return refused
            if self.largest is not None and len(body) > self.largest:
                return Answer(413, b"<html>too large</html>")
            work: Callable[..., Answer] = getattr(self, f"_{kind}")
            return work(request, body, query, **match.groupdict())

    def _refused(
        self, request: ReceivedRequest, names: dict[str, str], query: dict[str, str]
    ) -> Answer | None:
        """The error response to a request that is not allowed, if any."""
        given = request.headers.get("Authorization", "")
        if self.auth == "basic":
            return (
                None if given == basic_header(self.login) else self._challenge('Basic realm="here"')
            )
        if self.auth != "bearer":
            return None
        required = required_permissions(request.method, names, query)
        token = given.removeprefix("Bearer ")
        scopes, left = self.tokens.get(token, ((), 0))
        if left == 0 or not required <= {part for scope in scopes for part in scope_actions(scope)}:
            place = self.realm or f"{self.scheme}://{self.host}/token"
            scope = " ".join(f"{thing}:{action}" for thing, action in sorted(required))
            return self._challenge(f'Bearer realm="{place}",service="here",scope="{scope}"')
        self.tokens[token] = (scopes, None if left is None else left - 1)
        return None

    def _challenge(self, text: str) -> Answer:
        answer = error_answer(401, "UNAUTHORIZED")
        answer.headers["WWW-Authenticate"] = text
        return answer

    def _token(self, request: ReceivedRequest, body: bytes, query: dict[str, str]) -> Answer:
        form = dict(parse_qsl(body.decode()))
        if self.identity:
            right = (form.get("grant_type"), form.get("refresh_token"), request.method) == (
                "refresh_token", self.identity, "POST"
            )  # fmt: skip
        else:
            right = self.login is None or request.headers.get("Authorization") == basic_header(
                self.login
            )
        if not right:
            return error_answer(401, "UNAUTHORIZED")
        pairs = parse_qsl(urlsplit(request.path).query)
        scopes = tuple(value for name, value in pairs if name == "scope")
        scopes += tuple(form.get("scope", "").split())
        token = f"token-secret-{len(self.tokens)}"
        self.tokens[token] = (scopes, self.token_uses)
        self.granted.append(scopes)
        answer: dict[str, object] = {"access_token" if self.identity else "token": token}
        if self.token_life is not None:
            answer["expires_in"] = self.token_life
        return Answer(200, json.dumps(answer).encode(), {"Content-Type": "application/json"})

    def _ping(self, *_: object) -> Answer:
        return Answer(200, b"{}")

    # -- blobs

    def _begin(self, _: ReceivedRequest, body: bytes, query: dict[str, str], name: str) -> Answer:
        mounted = self.blobs.get((query.get("from", ""), query.get("mount", "")))
        if self.mounts and mounted is not None:
            self.blobs[name, query["mount"]] = mounted
            return self._created_answer(name, "blobs", query["mount"])
        self.begun += 1
        key = f"upload{self.begun}"
        self.sessions[key] = Session(name, bytearray(body))
        answer = Answer(202, b"", {"Location": self._place(key)})
        if self.chunk_minimum:
            answer.headers["OCI-Chunk-Min-Length"] = str(self.chunk_minimum)
        return answer

    def _session(
        self, request: ReceivedRequest, body: bytes, query: dict[str, str], key: str, **_: str
    ) -> Answer:
        session = self.sessions.get(key)
        if session is None:
            return error_answer(404, "BLOB_UPLOAD_UNKNOWN")
        if request.method == "GET":
            return Answer(204, b"", self._progress(key))
        if request.method == "DELETE":
            del self.sessions[key]
            return Answer(204)
        if request.method == "PATCH":
            span = request.headers.get("Content-Range", "")
            if span and int(span.partition("-")[0]) != len(session.data):
                return Answer(416, b"", self._progress(key))
            session.data += body
            return Answer(202, b"", self._progress(key))
        data = bytes(session.data) + body
        digest = query.get("digest", "")
        if self.verifies and digest != sha256_digest(data):
            return error_answer(400, "DIGEST_INVALID")
        del self.sessions[key]
        self.blobs[session.name, digest] = data
        return self._created_answer(session.name, "blobs", digest)

    def store_partial_body(self, request: ReceivedRequest, body: bytes) -> None:
        """Keep the part of a body that arrived before the connection broke."""
        match = re.search(r"(upload\d+)", urlsplit(request.path).path)
        with self.lock:
            session = self.sessions.get(match[1]) if match else None
            if session is not None and self.keeps_parts:
                session.data += body

    def _progress(self, key: str) -> dict[str, str]:
        size = len(self.sessions[key].data)
        return {"Location": self._place(key), "Range": f"0-{max(0, size - 1)}"}

    def _place(self, key: str) -> str:
        if self.locations == "foreign":
            return f"{self.scheme}://{self.storage}/elsewhere/{key}/{SECRET}?signature={SECRET}"
        path = f"/v2/{self.sessions[key].name}/blobs/uploads/{key}?_state={SECRET}"
        return path if self.locations == "relative" else f"{self.scheme}://{self.host}{path}"

    def _created_answer(self, name: str, kind: str, target: str) -> Answer:
        headers = {"Location": f"/v2/{name}/{kind}/{target}"}
        if self.tells_digest:
            headers["Docker-Content-Digest"] = target
        return Answer(201, b"", headers)

    def _blob(
        self, request: ReceivedRequest, _: bytes, query: dict[str, str], name: str, digest: str
    ) -> Answer:
        if request.method == "DELETE":
            return self._deleted(self.blobs.pop((name, digest), None) if self.deletes else False)
        if (name, digest) not in self.blobs:
            return error_answer(404, "BLOB_UNKNOWN")
        if self.redirects:
            place = f"{self.scheme}://{self.storage}/stored/{name}/{digest}?signature={SECRET}"
            return Answer(307, b"", {"Location": place})
        return self._stored(request, b"", query, name, digest)

    def _stored(
        self, request: ReceivedRequest, _: bytes, __: dict[str, str], name: str, digest: str
    ) -> Answer:
        data = self.blobs[name, digest]
        headers = {"Content-Type": "application/octet-stream", "Docker-Content-Digest": digest}
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", request.headers.get("Range", ""))
        if match is None or not self.ranges:
            return Answer(200, data, headers)
        start, end = int(match[1]), min(len(data), int(match[2] or len(data)) + 1)
        if start >= len(data):
            return Answer(416, b"", {"Content-Range": f"bytes */{len(data)}"})
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(data)}"
        return Answer(206, data[start:end], headers)

    def _deleted(self, removed: object) -> Answer:
        if not self.deletes:
            return error_answer(405, "UNSUPPORTED")
        return Answer(202) if removed is not None else error_answer(404, "UNKNOWN")

    # -- manifests and lists

    def _manifest(
        self, request: ReceivedRequest, body: bytes, _: dict[str, str], name: str, target: str
    ) -> Answer:
        digest = target if ":" in target else self.tags.get((name, target), "")
        if request.method == "PUT":
            return self._put(request, body, name, target)
        if request.method == "DELETE":
            if self.deletes and ":" not in target:
                return self._deleted(self.tags.pop((name, target), None))
            return self._deleted(self.manifests.pop((name, digest), None) if self.deletes else 0)
        if (name, digest) not in self.manifests:
            return error_answer(404, "MANIFEST_UNKNOWN")
        if request.method == "HEAD" and not self.heads:
            return Answer(405)
        data, kind = self.manifests[name, digest]
        headers = {"Content-Type": kind}
        if self.tells_digest:
            headers["Docker-Content-Digest"] = digest
        return Answer(200, data, headers)

    def _put(self, request: ReceivedRequest, body: bytes, name: str, target: str) -> Answer:
        digest = sha256_digest(body)
        if self.verifies and ":" in target and target != digest:
            return error_answer(400, "DIGEST_INVALID")
        document = json.loads(body)
        below = [document.get("config"), *document.get("layers", ())]
        lacking = [
            descriptor
            for descriptor in below
            if descriptor and (name, descriptor["digest"]) not in self.blobs
        ]
        lacking += [
            descriptor for descriptor in document.get("manifests", ())
            if (name, descriptor["digest"]) not in self.manifests
            and not target.startswith("sha256-")
        ]  # fmt: skip
        if lacking:
            return error_answer(404, "MANIFEST_BLOB_UNKNOWN")
        self.manifests[name, digest] = (body, request.headers.get("Content-Type", ""))
        if ":" not in target:
            self.tags[name, target] = digest
        answer = self._created_answer(name, "manifests", digest)
        if self.referrers_api and "subject" in document:
            answer.headers["OCI-Subject"] = document["subject"]["digest"]
        return answer

    def _tags(self, request: ReceivedRequest, _: bytes, query: dict[str, str], name: str) -> Answer:
        tags = sorted(tag for owner, tag in self.tags if owner == name)
        if not tags and not any(owner == name for owner, _ in self.manifests):
            return error_answer(404, "NAME_UNKNOWN")
        return self._listed(request, query, tags, lambda part: {"name": name, "tags": part})

    def _catalog(self, request: ReceivedRequest, _: bytes, query: dict[str, str]) -> Answer:
        repositories = sorted({name for name, _ in self.manifests})
        return self._listed(request, query, repositories, lambda part: {"repositories": part})

    def _referrers(
        self, request: ReceivedRequest, _: bytes, query: dict[str, str], name: str, digest: str
    ) -> Answer:
        if not self.referrers_api:
            return Answer(404, b"<html>not found</html>")
        referrers = [
            descriptor for (owner, key), (data, kind) in self.manifests.items()
            if owner == name and (descriptor := referrer_entry(data, kind, key, digest)) is not None
        ]  # fmt: skip
        artifact_type = query.get("artifactType") if self.filters else None
        referrers = [
            descriptor
            for descriptor in referrers
            if artifact_type in (None, descriptor["artifactType"])
        ]
        answer = self._listed(
            request, query, referrers,
            lambda part: {"schemaVersion": 2, "mediaType": INDEX, "manifests": part},
        )  # fmt: skip
        answer.headers["Content-Type"] = INDEX
        if artifact_type:
            answer.headers["OCI-Filters-Applied"] = "artifactType"
        return answer

    def _listed(
        self,
        request: ReceivedRequest,
        query: dict[str, str],
        entries: list,  # type: ignore[type-arg]
        shape: Callable[[list], object],  # type: ignore[type-arg]
    ) -> Answer:
        """A page of a list, with a Link header for the next page."""
        start, size = int(query.get("at", 0)), self.page or len(entries) or 1
        answer = Answer(200, json.dumps(shape(entries[start : start + size])).encode())
        answer.headers["Content-Type"] = "application/json"
        if start + size < len(entries):
            page_query = urlencode({**query, "at": start + size})
            path = urlsplit(request.path).path
            answer.headers["Link"] = f'<{path}?{page_query}>; rel="next"'
        return answer


def isolate_logins(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Hide the logins, certificates and proxies of this machine from a test."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("NETRC", str(folder / "netrc"))
    monkeypatch.setenv("DOCKER_CONFIG", str(folder / "docker"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder / "run"))
    monkeypatch.delenv("REGISTRY_AUTH_FILE", raising=False)
    monkeypatch.setenv("PATH", str(folder / "bin"))
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.null.Keyring")


def change_header(name: str, value: str | None) -> Callable[[Answer], None]:
    """A change that sets header `name` of a response, or removes it."""

    def _edit(answer: Answer) -> None:
        answer.headers[name] = value or ""
        if value is None:
            del answer.headers[name]

    return _edit


def image_reference(registry: Registry, name: str, target: str) -> ImageReference:
    """The reference to a tag or digest of a repository."""
    tag, digest = (None, target) if ":" in target else (target, None)
    return ImageReference(registry.host, name, tag, digest)
