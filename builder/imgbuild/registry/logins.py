"""Reads registry credentials from files and credential helpers of Docker and podman.

As in Docker, the helper for the host in `credHelpers` is tried first, then `credsStore`, then
`auths`. A failure is only a warning, because the registry may not need credentials.
"""

from __future__ import annotations

import base64
import os
from pathlib import Path

import msgspec

from imgbuild.errors import InputError
from imgbuild.http.credentials import LoginPair
from imgbuild.registry.hosts import HUB_SERVER
from imgbuild.registry.image_reference import HUB
from imgbuild.system import boundary, decoding, process, programs
from imgbuild.system.files import home_folder
from imgbuild.system.reporter import SILENT_REPORTER, Reporter

HUB_LOGIN = "https://index.docker.io/v1/"
TOKEN_USER = "<token>"  # noqa: S105 - by this name a helper says that its secret is a token
NOT_FOUND_TEXT = "credentials not found"


class RegistryLogin(msgspec.Struct, frozen=True):
    """The credentials for a host: username and password, identity token, or bearer token."""

    login: LoginPair | None = None
    identity: str = ""
    bearer: str = ""

    @property
    def secret_texts(self) -> tuple[str, ...]:
        """The password and tokens, which must not be printed."""
        parts = (self.login[1] if self.login else "", self.identity, self.bearer)
        return tuple(part for part in parts if part)


class _AuthEntry(msgspec.Struct, frozen=True):
    auth: str = ""
    username: str = ""
    password: str = ""
    identitytoken: str = ""
    registrytoken: str = ""


class _DockerConfig(msgspec.Struct, frozen=True, rename="camel"):
    auths: dict[str, _AuthEntry] = {}
    creds_store: str = ""
    cred_helpers: dict[str, str] = {}


class _HelperAnswer(msgspec.Struct, frozen=True, rename="pascal"):
    username: str = ""
    secret: str = ""


def find_registry_login(host: str, reporter: Reporter = SILENT_REPORTER) -> RegistryLogin:
    """Return the credentials for `host` from Docker or podman. They are empty if not found."""
    return next(
        (
            login
            for path in _files()
            if (login := _login_in_file(path, host, reporter)) != RegistryLogin()
        ),
        RegistryLogin(),
    )


def _files() -> tuple[Path, ...]:
    docker = Path(os.environ.get("DOCKER_CONFIG") or home_folder() / ".docker")
    run_time = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    podman = os.environ.get("REGISTRY_AUTH_FILE") or f"{run_time}/containers/auth.json"
    return (docker / "config.json", Path(podman))


def _login_in_file(path: Path, host: str, reporter: Reporter) -> RegistryLogin:
    config = _read_config(path)
    names = _names(host)
    helpers = [config.cred_helpers[name] for name in names if name in config.cred_helpers]
    for helper in helpers[:1] or [config.creds_store]:
        login = _run_helper(helper, names[0], path, reporter) if helper else RegistryLogin()
        if login != RegistryLogin():
            return login
    entries = [(name, config.auths[name]) for name in names if name in config.auths]
    # An empty entry means that a helper stores the credentials.
    filled_entries = [(name, entry) for name, entry in entries if entry != _AuthEntry()]
    return (
        _decode_auth(filled_entries[0][1], filled_entries[0][0], path)
        if filled_entries
        else RegistryLogin()
    )


def _names(host: str) -> tuple[str, ...]:
    """Return the names under which credentials for `host` can be stored.

    Credential helpers are called only with the first name.
    """
    if host in (HUB, HUB_SERVER):
        return (HUB_LOGIN, HUB)
    forms = ("https://{}", "https://{}/", "https://{}/v2/", "https://{}/v1/", "http://{}")
    return (host, *(form.format(host) for form in forms))


def _read_config(path: Path) -> _DockerConfig:
    try:
        return decoding.decode_json(boundary.read_regular_file(path), _DockerConfig)
    except FileNotFoundError:
        return _DockerConfig()
    except OSError as error:
        message = f"cannot read {path}: {error.strerror}"
        raise InputError(message) from error
    except (msgspec.DecodeError, UnicodeDecodeError):
        # The parser's message may quote the content.
        message = f"{path} is not a valid Docker configuration"
        raise InputError(
            message, hint="correct the file, or set DOCKER_CONFIG to another folder"
        ) from None


def _decode_auth(auth: _AuthEntry, name: str, path: Path) -> RegistryLogin:
    user, colon, password = auth.username, ":", auth.password
    if auth.auth:
        try:
            user, colon, password = base64.b64decode(auth.auth).decode().partition(":")
        except ValueError:  # not base64, or another encoding
            colon = ""
        if not colon:
            message = f"{path}: unreadable credentials for {name}"
            raise InputError(message, hint=f"run `docker logout {name}` and `docker login {name}`")
    login = (user, password.rstrip("\0")) if user and password else None
    return RegistryLogin(login, auth.identitytoken, auth.registrytoken)


def _run_helper(helper: str, name: str, path: Path, reporter: Reporter) -> RegistryLogin:
    program = programs.find_on_path(f"docker-credential-{helper}")
    if program is None:
        reporter.warn(f"{path} requires docker-credential-{helper}, which is not installed")
        return RegistryLogin()
    result = process.run_command([program, "get"], stdin=name, check=False)
    if result.status != 0:
        if NOT_FOUND_TEXT not in result.stdout + result.stderr:
            reporter.warn(f"docker-credential-{helper} has no credentials for {name}")
        return RegistryLogin()
    try:
        answer = decoding.decode_json(result.stdout.encode(), _HelperAnswer)
    except msgspec.DecodeError:
        reporter.warn(f"docker-credential-{helper} returned invalid credentials for {name}")
        return RegistryLogin()
    if answer.username == TOKEN_USER:
        return RegistryLogin(identity=answer.secret)
    return RegistryLogin((answer.username, answer.secret)) if answer.username else RegistryLogin()
