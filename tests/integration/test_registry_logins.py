"""Tests credentials, tokens and certificates with docker-registry, and credential helpers."""

from __future__ import annotations

import base64
import datetime
import http.server
import json
import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar
from urllib.parse import parse_qs, urlsplit

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from imgbuild.errors import FetchFailed
from imgbuild.oci.documents import (
    EMPTY_CONFIG,
    EMPTY_TYPE,
    MANIFEST,
    create_descriptor,
    create_manifest,
)
from imgbuild.registry import logins
from imgbuild.registry.client import RegistryClient, UploadOutcome, bytes_source
from imgbuild.registry.image_reference import Repository
from imgbuild.registry.logins import RegistryLogin
from imgbuild.system.console import console
from tests.support import docker_registry, memory_registry
from tests.support.servers import serve_requests

pytestmark = pytest.mark.engine

LOGIN = ("me", "s3cr3t-word")
# The same, with the bcrypt hash of its password.
HTPASSWD = "me:$2b$04$BmC0zBdUyUYAREX/rQPf..sl6vSKgTYI5UPOor5Q14/SYcVXZ3.9a\n"
BLOB = bytes_source(b"some bytes " * 100_000)


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = os.environ["PATH"]
    memory_registry.isolate_logins(monkeypatch, tmp_path)
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{path}")
    (tmp_path / "bin").mkdir()
    (tmp_path / "docker").mkdir()


def program(folder: Path, name: str, script: str) -> None:
    """Install a credential helper that records its input."""
    path = folder / "bin" / f"docker-credential-{name}"
    path.write_text(f'#!/bin/sh\nread -r asked\necho "$1 $asked" >>{folder}/asked\n{script}\n')
    path.chmod(0o755)


def configure(folder: Path, **content: object) -> None:
    (folder / "docker/config.json").write_text(json.dumps(content))


def answer(user: str, secret: str) -> str:
    document = json.dumps({"ServerURL": "x", "Username": user, "Secret": secret})
    return f"echo '{document}'"


# -- programs


def test_credential_helper_for_the_host_takes_precedence(tmp_path):
    configure(tmp_path, credsStore="all", credHelpers={"h:1": "one"})
    program(tmp_path, "all", answer("me", "of all"))
    program(tmp_path, "one", answer("me", "of one"))
    assert logins.find_registry_login("h:1") == RegistryLogin(("me", "of one"))
    assert logins.find_registry_login("docker.io") == RegistryLogin(("me", "of all"))
    calls = (tmp_path / "asked").read_text().splitlines()
    assert calls == ["get h:1", "get https://index.docker.io/v1/"]


def test_credential_helper_can_return_identity_token(tmp_path):
    configure(tmp_path, credsStore="all")
    program(tmp_path, "all", answer("<token>", "identity"))
    assert logins.find_registry_login("h:1") == RegistryLogin(identity="identity")


@pytest.mark.parametrize(
    ("script", "result"),
    [
        ("echo credentials not found in native keychain; exit 1", ""),
        ("echo no session of my-secret >&2; exit 1", "has no credentials for h:1"),
        ("echo my-secret", "returned invalid credentials for h:1"),
        ("echo '{}'", ""),
    ],
)
def test_credential_helper_without_credentials_is_skipped(tmp_path, capsys, script, result):
    auth = base64.b64encode(":".join(LOGIN).encode()).decode()
    configure(tmp_path, credsStore="all", auths={"h:1": {"auth": auth}})
    program(tmp_path, "all", script)
    assert logins.find_registry_login("h:1", console) == RegistryLogin(LOGIN)
    message = " ".join(capsys.readouterr().err.split())
    assert result in message
    assert "my-secret" not in message
    assert bool(result) == bool(message)


# -- a registry with TLS and a login


@contextmanager
def secure(folder: Path, authority: trustme.CA, **settings: str) -> Iterator[Repository]:
    """A docker-registry with TLS; a hosts.toml names its certificate authority."""
    issued = authority.issue_cert("127.0.0.1")
    issued.private_key_pem.write_to_path(str(folder / "tls.key"))
    issued.cert_chain_pems[0].write_to_path(str(folder / "tls.crt"))
    environment = {
        "REGISTRY_HTTP_TLS_CERTIFICATE": f"{folder}/tls.crt",
        "REGISTRY_HTTP_TLS_KEY": f"{folder}/tls.key",
        **settings,
    }
    with docker_registry.serve_registry(folder / "registry", environment) as registry:
        place = folder / "config/imgbuild/certs.d" / registry.host
        place.mkdir(parents=True)
        authority.cert_pem.write_to_path(str(place / "own.crt"))
        text = f'server = "https://{registry.host}"\nca = "own.crt"\n'
        (place / "hosts.toml").write_text(text)
        yield Repository(registry.host, "me/x")


def test_credential_helper_is_used_with_tls_registry(tmp_path, capfd):
    (tmp_path / "htpasswd").write_text(HTPASSWD)
    settings = {
        "REGISTRY_AUTH": "htpasswd",
        "REGISTRY_AUTH_HTPASSWD_REALM": "here",
        "REGISTRY_AUTH_HTPASSWD_PATH": f"{tmp_path}/htpasswd",
    }
    with secure(tmp_path, trustme.CA(), **settings) as repository:
        with pytest.raises(FetchFailed, match="401") as caught:
            RegistryClient(attempts=1).has(repository, BLOB.digest)
        assert caught.value.hint == (
            f"run docker login {repository.host} with an account that has this permission"
        )
        configure(tmp_path, credHelpers={repository.host: "one"})
        program(tmp_path, "one", answer(*LOGIN))
        assert RegistryClient().upload_blob(repository, BLOB) is UploadOutcome.UPLOADED
        assert RegistryClient().has(repository, BLOB.digest) == BLOB.size
        (tmp_path / "config/imgbuild/certs.d" / repository.host / "own.crt").unlink()
        (tmp_path / "config/imgbuild/certs.d" / repository.host / "hosts.toml").write_text(
            f'server = "https://{repository.host}"\n'
        )
        with pytest.raises(FetchFailed, match="the certificate is not trusted"):
            RegistryClient(attempts=1).has(repository, BLOB.digest)
    assert LOGIN[1] not in "".join(capfd.readouterr())


# -- a registry with a token server


class TokenServer(http.server.BaseHTTPRequestHandler):
    """Signs the requested tokens for clients with the password."""

    key = ec.generate_private_key(ec.SECP256R1())
    chain = ""
    asked: ClassVar[list[list[str]]] = []

    def log_message(self, *_: object) -> None:
        """Suppress log output."""

    def do_GET(self) -> None:
        right = "Basic " + base64.b64encode(":".join(LOGIN).encode()).decode()
        scopes = parse_qs(urlsplit(self.path).query).get("scope", [])
        self.asked.append(scopes)
        allowed = self.headers.get("Authorization") == right
        data = json.dumps({"token": self.token(scopes)} if allowed else {}).encode()
        self.send_response(200 if allowed else 401)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def token(self, scopes: list[str]) -> str:
        """A JSON web token in the format of docker-registry."""
        now = int(datetime.datetime.now(datetime.UTC).timestamp())
        access = []
        for scope in scopes:
            kind, name, actions = scope.split(":")
            access.append({"type": kind, "name": name, "actions": actions.split(",")})
        claims = {"iss": "here", "sub": "me", "aud": "here", "exp": now + 300, "nbf": now - 60,
                  "iat": now, "jti": "1", "access": access}  # fmt: skip
        head = {"typ": "JWT", "alg": "ES256", "x5c": [self.chain]}
        text = ".".join(coded(json.dumps(part).encode()) for part in (head, claims))
        r, s = decode_dss_signature(self.key.sign(text.encode(), ec.ECDSA(hashes.SHA256())))
        return f"{text}.{coded(r.to_bytes(32, 'big') + s.to_bytes(32, 'big'))}"


def coded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def test_docker_registry_accepts_requested_tokens(tmp_path):
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "tokens")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(TokenServer.key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(TokenServer.key, hashes.SHA256())
    )
    (tmp_path / "tokens.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    chain = certificate.public_bytes(serialization.Encoding.DER)
    TokenServer.chain = base64.b64encode(chain).decode()
    authority, context = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with serve_requests(TokenServer, context) as port:
        settings = {
            "REGISTRY_AUTH": "token",
            "REGISTRY_AUTH_TOKEN_REALM": f"https://127.0.0.1:{port}/token",
            "REGISTRY_AUTH_TOKEN_SERVICE": "here",
            "REGISTRY_AUTH_TOKEN_ISSUER": "here",
            "REGISTRY_AUTH_TOKEN_ROOTCERTBUNDLE": f"{tmp_path}/tokens.pem",
        }
        with secure(tmp_path, authority, **settings) as repository:
            push_mount_and_delete(tmp_path, repository.host)
    assert TokenServer.asked == [
        ["repository:me/x:pull,push"],
        ["repository:me/y:pull,push", "repository:me/x:pull"],
        ["repository:me/y:pull,push"],
        ["repository:me/y:pull"],
        ["repository:me/y:pull,delete"],
        ["registry:catalog:*"],
    ]


def push_mount_and_delete(folder: Path, host: str) -> None:
    """Run operations that require tokens with different scopes."""
    auth = base64.b64encode(":".join(LOGIN).encode()).decode()
    configure(folder, auths={host: {"auth": auth}})
    client = RegistryClient()
    x, y = Repository(host, "me/x"), Repository(host, "me/y")
    assert client.upload_blob(x, BLOB) is UploadOutcome.UPLOADED
    assert client.mount(y, BLOB.digest, BLOB.size, x)
    client.upload_blob(y, bytes_source(EMPTY_CONFIG))
    manifest = create_manifest(create_descriptor(EMPTY_TYPE, EMPTY_CONFIG), [])
    assert client.delete(y, client.put_manifest(y, manifest, MANIFEST))
    assert list(client.repositories(host)) in ([], ["me/x"], ["me/x", "me/y"])
