"""Images in registries, read only: the layers of a base that is named by its digest.

Comes in: `host/name@sha256:…` and an architecture. Goes out: the manifest's digest, the layers and
the configuration, each checked against its digest; and layers in the store. Logins are Docker's own
(config.json); a bearer token is asked for when the registry wants one. Registries on this machine
are spoken to without TLS, others never.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import shutil
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlencode, urlsplit

import msgspec

from imgbuild import codec
from imgbuild.credentials import Login, origin
from imgbuild.errors import FetchFailed, InputError, IntegrityError
from imgbuild.fetch import Http, Want, fetch_all
from imgbuild.oci import documents
from imgbuild.oci.documents import Configuration, Descriptor, Index, Manifest
from imgbuild.resolution import Locked, RegistryLayer
from imgbuild.store import Store
from imgbuild.values import DIGEST_PATTERN, Arch, Digest, sha256

if TYPE_CHECKING:
    from imgbuild.fetch_session import Response

HUB = "docker.io"
HUB_SERVER = "registry-1.docker.io"
HUB_LOGIN = "https://index.docker.io/v1/"
LOCAL = re.compile(r"^(localhost|127\.0\.0\.1|\[::1\])(:\d+)?$")
NAME = re.compile(r"[a-z0-9]+(?:[._/-]+[a-z0-9]+)*")
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_INDEX = "application/vnd.docker.distribution.manifest.list.v2+json"
ACCEPT = f"{documents.INDEX}, {documents.MANIFEST}, {DOCKER_INDEX}, {DOCKER_MANIFEST}"
# Docker's own types name the same bytes; in an OCI manifest they are written as OCI has them. Not
# zstd: neither Docker 20.10 nor Python's tarfile reads it, and the accounts stand in some layer.
LAYER_TYPES = {
    documents.LAYER: documents.LAYER,
    documents.LAYER_GZIP: documents.LAYER_GZIP,
    "application/vnd.docker.image.rootfs.diff.tar": documents.LAYER,
    "application/vnd.docker.image.rootfs.diff.tar.gzip": documents.LAYER_GZIP,
}
REFUSED = "the registry does not serve what the digest names: do not use it"


class Reference(msgspec.Struct, frozen=True, kw_only=True):
    """An image in a registry, by digest."""

    host: str
    name: str
    digest: Digest

    @property
    def server(self) -> str:
        """The address of the registry's API for this image."""
        scheme = "http" if LOCAL.match(self.host) else "https"
        server = HUB_SERVER if self.host == HUB else self.host
        return f"{scheme}://{server}/v2/{self.name}"

    def blob(self, digest: Digest) -> str:
        """The address of a blob of this image."""
        return f"{self.server}/blobs/{digest}"


class Base(msgspec.Struct, frozen=True, kw_only=True):
    """A registry image on one architecture; `settings` is what its configuration says to run."""

    manifest: Digest
    layers: tuple[RegistryLayer, ...]
    settings: dict[str, object]


def parse(text: str) -> Reference:
    """Read `[host/]name[:tag]@sha256:…`; InputError if it is none or has no digest."""
    named, _, digest = text.partition("@")
    host, slash, name = named.partition("/")
    if not slash or not ("." in host or ":" in host or host == "localhost"):
        host, name = HUB, named if slash else f"library/{named}"
    name = re.sub(r":[^/]*$", "", name)
    if not (re.fullmatch(DIGEST_PATTERN, digest) and NAME.fullmatch(name)):
        message = f"{text!r} does not name an image by its digest"
        raise InputError(message, hint="write host/name@sha256:…, as `skopeo inspect` shows it")
    return Reference(host=host, name=name, digest=digest)


def base(text: str, arch: Arch, http: RegistryHttp | None = None) -> Base:
    """The image `text` on `arch`, documents only.

    InputError if it has no such architecture or a layer that cannot be copied, IntegrityError if a
    document is not what its digest names, FetchFailed if the registry does not give it.
    """
    reference = parse(text)
    http = http or RegistryHttp()
    digest, manifest = _manifest(reference, arch, http)
    data = _document(reference, manifest.config.digest, f"blobs/{manifest.config.digest}", http)
    config = codec.decode(data, Configuration, file=text)
    if config.architecture != arch.oci:
        message = f"{text} is for {config.architecture}, not for {arch}"
        raise InputError(message, hint="name an image, or an index, that has this architecture")
    if len(config.rootfs.diff_ids) != len(manifest.layers):
        message = f"{text}: {len(manifest.layers)} layers, {len(config.rootfs.diff_ids)} diff ids"
        raise IntegrityError(message, hint=REFUSED)
    layers = tuple(
        RegistryLayer(
            digest=layer.digest,
            size=layer.size,
            diff_id=diff_id,
            media_type=_layer_type(text, layer.media_type),
        )
        for layer, diff_id in zip(manifest.layers, config.rootfs.diff_ids, strict=True)
    )
    return Base(manifest=digest, layers=layers, settings=config.config)


def fetch_layers(
    text: str, layers: Sequence[RegistryLayer], store: Store, http: RegistryHttp | None = None
) -> None:
    """Bring the layers of the image `text` that the store has not got into it, as blobs."""
    reference = parse(text)
    due = {layer.digest: layer for layer in layers if store.blob(layer.digest) is None}
    wants = []
    for digest, layer in due.items():
        locked = Locked(
            file=f"layer {digest} of {text}", size=layer.size, sha256=digest.removeprefix("sha256:")
        )
        urls = (reference.blob(digest),)
        wants.append(Want(locked, lambda urls=urls: urls))  # type: ignore[misc]
    paths = fetch_all(wants, store, http or RegistryHttp(), title=f"layers of {reference.name}")
    for key, path in paths.items():
        with store.scratch() as scratch:
            blob = scratch / "blob"
            try:
                blob.hardlink_to(path)
            except OSError:  # a file system without links
                shutil.copyfile(path, blob)
            store.add_blob(blob, f"sha256:{key}")
        store.drop_file(key)


class RegistryHttp(Http):
    """Requests with the tokens that registries hand out; each is sent to its own registry only."""

    def __init__(self, *, offline: bool = False) -> None:
        super().__init__(offline=offline)
        self._headers: dict[str, str] = {}
        self._tokens = threading.Lock()

    def document(self, url: str) -> bytes:
        """A manifest, index or configuration, as it lies there."""
        headers = {"Accept": ACCEPT, "Accept-Encoding": "identity"}
        return self._retrying(url, headers, lambda answer: b"".join(self.chunks(answer)))

    def _send(
        self, method: str, url: str, headers: Mapping[str, str], login: Login | None
    ) -> Response:
        repository = re.match(r".*/v2/.*(?=/(?:blobs|manifests)/)", url)
        if repository is None:
            return super()._send(method, url, headers, login)
        known = self._headers.get(repository[0])
        sent = {**headers, "Authorization": known} if known else headers
        answer = super()._send(method, url, sent, None if known else login)
        challenge = answer.headers.get("WWW-Authenticate", "")
        if answer.status_code != 401 or not challenge:
            return answer
        with self._tokens:
            granted = self._headers.get(repository[0])
            if granted in (None, known):
                granted = self._authorize(url, challenge, login)
            if granted is None:
                return answer
            self._headers[repository[0]] = granted
        answer.close()
        return super()._send(method, url, {**headers, "Authorization": granted}, None)

    def _authorize(self, url: str, challenge: str, login: Login | None) -> str | None:
        """The header that answers `challenge`; None if there is nothing to answer with."""
        login = docker_login(urlsplit(url).netloc) or login
        if login:
            self.credentials.hide(login[1])
        scheme, _, rest = challenge.partition(" ")
        fields = dict(re.findall(r'(\w+)="([^"]*)"', rest))
        if scheme.lower() == "basic":
            return _basic(login) if login else None
        if scheme.lower() != "bearer" or "realm" not in fields:
            return None
        realm = fields.pop("realm")
        if urlsplit(realm).scheme != "https" and origin(realm) != origin(url) and login:
            message = f"{urlsplit(url).netloc} sends logins to {origin(realm)}, which has no TLS"
            raise FetchFailed(message, hint="ask the registry's owner; the login was not sent")
        asked = {key: fields[key] for key in ("service", "scope") if key in fields}
        with contextlib.closing(
            super()._send("GET", f"{realm}?{urlencode(asked)}", {}, login)
        ) as answer:
            if answer.status_code != 200:
                return None
            body = b"".join(self.chunks(answer, decode=True))
        granted = codec.decode(body, _Token, file=origin(realm))
        token = granted.token or granted.access_token
        self.credentials.hide(token)
        return f"Bearer {token}" if token else None


class _Token(msgspec.Struct, frozen=True):
    token: str = ""
    access_token: str = ""


def docker_login(host: str) -> Login | None:
    """The login that Docker's configuration ($DOCKER_CONFIG, ~/.docker) has for `host`, if any."""
    folder = Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker")
    names = (HUB_LOGIN, HUB) if host == HUB_SERVER else (host, f"https://{host}")
    with contextlib.suppress(OSError, ValueError, AttributeError):
        logins = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("auths", {})
        for name in names:
            encoded = logins.get(name, {}).get("auth", "")
            user, colon, password = base64.b64decode(encoded).decode().partition(":")
            if colon:
                return user, password.rstrip("\0")
    return None


def _basic(login: Login) -> str:
    return f"Basic {base64.b64encode(':'.join(login).encode()).decode()}"


def _manifest(reference: Reference, arch: Arch, http: RegistryHttp) -> tuple[Digest, Manifest]:
    """The manifest for `arch`, by way of the index if the digest names one."""
    digest = reference.digest
    for _ in range(2):
        data = _document(reference, digest, f"manifests/{digest}", http)
        named = f"{reference.name}@{digest}"
        listed = codec.decode(data, _Either, file=named).manifests
        if listed is None:
            return digest, codec.decode(data, Manifest, file=named)
        entries = codec.decode(data, Index, file=named).manifests
        digest = _choose(entries, arch, named)
    message = f"{reference.name}@{reference.digest} is an index of indexes"
    raise InputError(message, hint="name the digest of one image")


class _Either(msgspec.Struct, frozen=True):
    """What tells an index from a manifest."""

    manifests: list[object] | None = None


def _choose(entries: Sequence[Descriptor], arch: Arch, named: str) -> Digest:
    platforms = [
        (entry.platform.get("os"), entry.platform.get("architecture")) for entry in entries
    ]
    if ("linux", arch.oci) not in platforms:
        known = ", ".join(sorted(f"{system}/{machine}" for system, machine in platforms))
        message = f"{named} has no image for linux/{arch.oci}, only {known}"
        raise InputError(message, hint="choose another base, or leave this architecture out")
    return entries[platforms.index(("linux", arch.oci))].digest


def _document(reference: Reference, digest: Digest, path: str, http: RegistryHttp) -> bytes:
    data = http.document(f"{reference.server}/{path}")
    found = f"sha256:{sha256(data)}"
    if found != digest:
        message = f"{reference.host} gives {found} for {reference.name}@{digest}"
        raise IntegrityError(message, hint=REFUSED)
    return data


def _layer_type(text: str, found: str) -> str:
    if found not in LAYER_TYPES:
        message = f"{text} has a layer of the type {found}, which imgbuild does not read"
        hint = "choose a base whose layers are gzip, or push it again with such layers"
        raise InputError(message, hint=hint)
    return LAYER_TYPES[found]
