"""Defines the requests, responses and faults of `memory_registry`."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256

SECRET = "location-secret-word"
INDEX = "application/vnd.oci.image.index.v1+json"
NAME = r"(?P<name>[a-z0-9._/-]+)"
ROUTES: tuple[tuple[str, str], ...] = (
    ("token", r"/token"),
    ("ping", r"/v2/"),
    ("catalog", r"/v2/_catalog"),
    ("begin", rf"/v2/{NAME}/blobs/uploads/"),
    ("session", rf"/v2/{NAME}/blobs/uploads/(?P<key>\w+)"),
    ("session", rf"/elsewhere/(?P<key>\w+)/{SECRET}"),
    ("blob", rf"/v2/{NAME}/blobs/(?P<digest>[^/]+)"),
    ("stored", rf"/stored/{NAME}/(?P<digest>sha256:[^/]+)"),
    ("manifest", rf"/v2/{NAME}/manifests/(?P<target>[^/]+)"),
    ("tags", rf"/v2/{NAME}/tags/list"),
    ("referrers", rf"/v2/{NAME}/referrers/(?P<digest>[^/]+)"),
)


@dataclass
class Fault:
    """A fault in the next `times` requests whose "METHOD /path?query" matches `where`."""

    where: str
    times: int = 1
    status: int | None = None  # only this response, without effect
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    cut_request: int | None = None  # the line breaks after so many bytes of the request's body
    cut_answer: int | None = None  # the line breaks after so many bytes of the answer's body
    mute: bool = False  # the work is done, and the line breaks before the answer
    edit: Callable[[Answer], None] = lambda answer: None  # the response has other content


@dataclass
class Answer:
    """The response to a request."""

    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class ReceivedRequest:
    """A received request. `server` is "registry" or "storage"."""

    server: str
    method: str
    path: str
    headers: dict[str, str]
    size: int = 0  # bytes of the body that arrived


@dataclass
class Session:
    """The state of an upload."""

    name: str
    data: bytearray = field(default_factory=bytearray)


def referrer_entry(data: bytes, kind: str, digest: str, subject: str) -> dict[str, object] | None:
    """The entry for a manifest that refers to `subject`, else None."""
    document = json.loads(data)
    if document.get("subject", {}).get("digest") != subject:
        return None
    config = document.get("config", {}).get("mediaType", "")
    return {
        "mediaType": kind,
        "digest": digest,
        "size": len(data),
        "artifactType": document.get("artifactType") or config,
        "annotations": document.get("annotations", {}),
    }


def required_permissions(
    method: str, names: dict[str, str], query: dict[str, str]
) -> set[tuple[str, str]]:
    """The permissions that a request requires, as (resource, action)."""
    if "name" not in names:
        return {("registry:catalog", "*")}
    action = {"GET": "pull", "HEAD": "pull", "DELETE": "delete"}.get(method, "push")
    if "key" in names:
        action = "push"
    permissions = {(f"repository:{names['name']}", action)}
    return permissions | ({(f"repository:{query['from']}", "pull")} if "from" in query else set())


def scope_actions(scope: str) -> set[tuple[str, str]]:
    """The individual actions in a scope."""
    thing, _, words = scope.rpartition(":")
    return {(thing, word) for word in words.split(",")}


def basic_header(login: tuple[str, str] | None) -> str:
    """The Authorization header for a login."""
    return "Basic " + base64.b64encode(":".join(login or ("", "")).encode()).decode()


def sha256_digest(data: bytes) -> str:
    """The sha256 digest of `data`, in the form sha256:HEX."""
    return f"sha256:{sha256(data).hexdigest()}"


def error_answer(status: int, code: str) -> Answer:
    """An error response in the format of the specification."""
    data = json.dumps({"errors": [{"code": code, "message": f"this is {code}"}]}).encode()
    return Answer(status, data, {"Content-Type": "application/json"})
