"""Reads the mirrors and certificates of a registry host from hosts.toml and certs.d.

`HOST/hosts.toml`, in containerd's format, is read from ~/.config/imgbuild/certs.d and
/etc/containerd/certs.d. Docker's `HOST/*.crt` (authorities) and `*.cert` with `*.key` (client
certificates) are read from the same folders and from /etc/docker/certs.d. The first folder that
describes a host is used. By default, TLS is used unless the registry is on this machine or the user
allows plain HTTP.
"""

from __future__ import annotations

import os
import re
import ssl
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from imgbuild.errors import InputError
from imgbuild.registry.image_reference import HUB
from imgbuild.system import boundary, decoding
from imgbuild.system.files import home_folder
from imgbuild.system.reporter import SILENT_REPORTER, Reporter

HUB_SERVER = "registry-1.docker.io"
LOCAL_HOST = re.compile(r"^(localhost|127\.0\.0\.1|\[::1\])(:\d+)?$")
PULL, RESOLVE, PUSH = "pull", "resolve", "push"
CAPABILITIES = (PULL, RESOLVE, PUSH)
DEFAULT = "_default"


class HostCertificates(msgspec.Struct, frozen=True):
    """Additional CA certificates, and the client certificate (chain and key)."""

    authorities: tuple[Path, ...] = ()
    own: tuple[tuple[Path, Path | None], ...] = ()
    verify: bool = True


class HostEndpoint(msgspec.Struct, frozen=True):
    """A base URL of the registry `host`, or of a mirror of this registry."""

    host: str
    address: str
    capabilities: tuple[str, ...] = CAPABILITIES
    headers: dict[str, str] = {}
    certificates: HostCertificates = HostCertificates()
    mirror: bool = False

    def url(self, path: str) -> str:
        """Return the URL of `path`. For a mirror, the query parameter `ns` names the registry."""
        if not self.mirror:
            return f"{self.address}/{path}"
        return f"{self.address}/{path}{'&' if '?' in path else '?'}ns={self.host}"


def configuration_folders(environ: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the folders with host configurations, the user's folder first."""
    config = environ.get("XDG_CONFIG_HOME") or home_folder() / ".config"
    return (
        Path(config) / "imgbuild/certs.d",
        Path("/etc/containerd/certs.d"),
        Path("/etc/docker/certs.d"),
    )


def host_endpoints(
    host: str,
    plain_http: Collection[str] = (),
    places: Sequence[Path] | None = None,
    *,
    reporter: Reporter = SILENT_REPORTER,
) -> tuple[HostEndpoint, ...]:
    """Return the endpoints of `host`, mirrors first.

    Raises InputError if a configuration is invalid.
    """
    places = configuration_folders(os.environ) if places is None else places
    plain = host in plain_http or bool(LOCAL_HOST.match(host))
    address = f"{'http' if plain else 'https'}://{HUB_SERVER if host == HUB else host}/v2"
    for name in (host, DEFAULT):
        for folder in (place / name for place in places):
            described = folder / "hosts.toml"
            if described.is_file():
                host_endpoints = _described_endpoints(host, address, described)
                for endpoint in host_endpoints:
                    if not endpoint.certificates.verify:
                        reporter.warn(
                            f"{described}: the certificate of {endpoint.address} is not verified,"
                            " because skip_verify is set"
                        )
                return host_endpoints
            certificates = _docker_certificates(folder)
            if certificates != HostCertificates():
                return (HostEndpoint(host, address, certificates=certificates),)
    return (HostEndpoint(host, address),)


def tls_context(certificates: HostCertificates) -> ssl.SSLContext:
    """Create a TLS context with `certificates`. Raises InputError if a file is invalid."""
    from imgbuild.http import session

    tls_context = session.create_trust(os.environ)
    place = Path()
    try:
        for place in certificates.authorities:
            tls_context.load_verify_locations(cafile=place)
        for place, key in certificates.own:
            tls_context.load_cert_chain(place, key)
    except OSError as error:  # includes ssl.SSLError
        message = f"cannot use the certificate {place}: {error.strerror or error}"
        raise InputError(
            message, hint="use PEM format, and for a client certificate, add the key"
        ) from error
    if not certificates.verify:
        tls_context.check_hostname = False
        tls_context.verify_mode = ssl.CERT_NONE
    return tls_context


# -- hosts.toml

_Texts = str | list[str]


class _EndpointSettings(msgspec.Struct, frozen=True):
    capabilities: tuple[str, ...] = CAPABILITIES
    ca: _Texts = []
    client: str | list[str | list[str]] = []
    skip_verify: bool = False
    override_path: bool = False
    header: dict[str, _Texts] = {}


class _HostDocument(_EndpointSettings, frozen=True):
    server: str = ""
    host: dict[str, _EndpointSettings] = {}


def _described_endpoints(host: str, address: str, file: Path) -> tuple[HostEndpoint, ...]:
    try:
        document = decoding.convert(
            tomllib.loads(boundary.read_regular_file(file).decode()), _HostDocument
        )
    except (tomllib.TOMLDecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        message = f"{file}: {error}"
        raise InputError(message, hint="use the format of containerd's hosts.toml") from error
    except OSError as error:
        message = f"cannot read {file}: {error.strerror}"
        raise InputError(message) from error
    mirrors = [
        _endpoint(host, _address(name, settings, file), settings, file, mirror=True)
        for name, settings in document.host.items()
    ]
    server = _address(document.server, document, file) if document.server else address
    # A `server` with another name is the registry under that name, not a mirror of it.
    return (*mirrors, _endpoint(host, server, document, file, mirror=False))


def _address(text: str, settings: _EndpointSettings, file: Path) -> str:
    scheme = "http" if LOCAL_HOST.match(text.partition("/")[0]) else "https"
    full = text if "://" in text else f"{scheme}://{text}"
    parts = urlsplit(full)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
        message = f"{file}: {text!r} is not a registry address"
        raise InputError(message, hint="use https://HOST or https://HOST:PORT/PATH")
    path = full.rstrip("/")
    return path if settings.override_path or path.endswith("/v2") else f"{path}/v2"


def _endpoint(
    host: str, address: str, settings: _EndpointSettings, file: Path, *, mirror: bool
) -> HostEndpoint:
    unknown = [word for word in settings.capabilities if word not in CAPABILITIES]
    if unknown:
        message = f"{file}: {unknown[0]!r} is not a known capability"
        raise InputError(message, hint=f"use one of: {', '.join(CAPABILITIES)}")
    headers = {
        name: value if isinstance(value, str) else ", ".join(value)
        for name, value in settings.header.items()
    }
    certificates = HostCertificates(
        authorities=tuple(file.parent / each for each in _list(settings.ca)),
        own=tuple(_client_certificates(settings.client, file)),
        verify=not settings.skip_verify,
    )
    return HostEndpoint(host, address, settings.capabilities, headers, certificates, mirror)


def _client_certificates(
    setting: str | list[str | list[str]], file: Path
) -> Iterator[tuple[Path, Path | None]]:
    """Parse the setting `client`: a file, a list of files, or pairs of certificate and key."""
    for each in [setting] if isinstance(setting, str) else setting:
        certificate, *key = [each] if isinstance(each, str) else each
        yield file.parent / certificate, file.parent / key[0] if key and key[0] else None


def _list(texts: _Texts) -> list[str]:
    return [texts] if isinstance(texts, str) else texts


# -- Docker's folders


def _docker_certificates(folder: Path) -> HostCertificates:
    if not folder.is_dir():
        return HostCertificates()
    return HostCertificates(
        authorities=tuple(sorted(folder.glob("*.crt"))),
        own=tuple((each, each.with_suffix(".key")) for each in sorted(folder.glob("*.cert"))),
    )
