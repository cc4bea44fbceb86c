"""Finds credentials in URLs, netrc files and keyring, and removes them from messages.

Credentials are looked up in this order: `user:password@` in the URL or in an earlier URL of the
same server, then the netrc file ($NETRC, ~/.netrc), and after a response with status 401 the
`keyring` module or program.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import netrc
import os
import re
import threading
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from imgbuild.errors import InputError
from imgbuild.system import files, process, programs
from imgbuild.system.files import home_folder
from imgbuild.system.reporter import SILENT_REPORTER, Reporter

LoginPair = tuple[str, str]


def strip_login(url: str) -> str:
    """Remove the username and password from `url`."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def redact_url(url: str) -> str:
    """Remove the credentials, the fragment and the query, which can be a signature, from `url`."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def url_host(url: str) -> str:
    """Return the host of `url`, with the port if there is one."""
    return urlsplit(url).netloc.rpartition("@")[2]


def url_origin(url: str) -> str:
    """Return the scheme, host and port of `url`, to which credentials apply."""
    parts = urlsplit(url)
    port = parts.port or {"https": 443, "http": 80}.get(parts.scheme, 0)
    return f"{parts.scheme}://{(parts.hostname or '').lower()}:{port}"


class Credentials:
    """Finds and stores the credentials for the servers of a run. Thread-safe."""

    def __init__(self, reporter: Reporter = SILENT_REPORTER) -> None:
        self._reporter = reporter
        self._known: dict[str, LoginPair] = {}
        self._names: dict[str, str] = {}
        self._queried: set[str] = set()
        self._secrets: set[str] = set()
        self._lock = threading.Lock()
        self._netrc: netrc.netrc | None = None
        self._netrc_read = False

    def find_login(self, url: str) -> LoginPair | None:
        """Return the credentials for `url` from the URL or the netrc file, or None.

        Credentials in `url` are stored for the server, because the links on its pages lack
        credentials.
        """
        parts = urlsplit(url)
        with self._lock:
            name = unquote(parts.username or "")
            if parts.password is not None:
                self._store_login(url_origin(url), (name, unquote(parts.password)))
            elif name:
                self._names[url_origin(url)] = name
            login = self._known.get(url_origin(url))
            if login is None and parts.hostname:
                login = self._netrc_login(parts.hostname, name)
                if login is not None:
                    self._store_login(url_origin(url), login)
            return login

    def query_keyring(self, url: str) -> LoginPair | None:
        """Return the credentials for `url` from keyring, or None.

        Keyring is queried once for each server.
        """
        with self._lock:
            place = url_origin(url)
            if place not in self._queried:
                self._queried.add(place)
                login = _keyring_login(url, self._names.get(place), self._reporter)
                if login is not None:
                    self._store_login(place, login)
                return login
            return self._known.get(place)

    def hide_secret(self, secret: str) -> None:
        """Add `secret` to the texts that `scrub_text` removes."""
        # replacing shorter ones would corrupt texts without protecting anything
        if len(secret) > 2:
            self._secrets |= {secret, quote(secret, safe=""), quote(secret)}

    def scrub_text(self, text: str) -> str:
        """Remove known passwords, and `user:password@` in URLs, from `text`."""
        for secret in sorted(self._secrets, key=len, reverse=True):
            text = text.replace(secret, "***")
        return re.sub(r"://[^/@\s]*@", "://", text)

    def _store_login(self, place: str, login: LoginPair) -> None:
        self._known[place] = login
        self.hide_secret(login[1])

    def _netrc_login(self, hostname: str, name: str) -> LoginPair | None:
        if not self._netrc_read:
            self._netrc_read = True
            self._netrc = _read_netrc()
        if self._netrc is None:
            return None
        entry = self._netrc.authenticators(hostname)
        if entry is None or (name and entry[0] != name):
            return None
        return (entry[0] or "", entry[2] or "")


def _read_netrc() -> netrc.netrc | None:
    named = os.environ.get("NETRC")
    path = files.expand_home(named) if named else home_folder() / ".netrc"
    try:
        return netrc.netrc(path)
    except FileNotFoundError:
        return None
    except netrc.NetrcParseError as error:
        # The parser's message may contain a password: only the line number is shown.
        message = f"cannot read {path}: wrong syntax or permissions (line {error.lineno})"
        raise InputError(
            message, hint="change the owner of the file to yourself, and the mode to 0600"
        ) from None
    except OSError as error:
        message = f"cannot read {path}: {error.strerror}"
        raise InputError(message) from error


def _services(url: str) -> list[str]:
    """Return the keyring services of an index: the host, and the URL and its parents."""
    parts = urlsplit(strip_login(url))
    base = f"{parts.scheme}://{parts.netloc}"
    names = [parts.netloc, base, base + "/"]
    if parts.hostname and parts.hostname not in names:
        names.append(parts.hostname)
    path = ""
    for folder in parts.path.split("/")[1:-1][:4]:
        path += "/" + folder
        names += [base + path + "/", base + path]
    return names


def _keyring_login(url: str, name: str | None, reporter: Reporter) -> LoginPair | None:
    try:
        keyring = importlib.import_module("keyring")
    except ImportError:
        return _keyring_program_login(url, name)
    for service in _services(url):
        try:
            credential = keyring.get_credential(service, name)
        except Exception as error:  # noqa: BLE001 - backends have their own: locked, no desktop, …
            reporter.detail(f"cannot read keyring: {type(error).__name__}")
            return None
        if credential is not None:
            return (credential.username, credential.password)
    return None


def _keyring_program_login(url: str, name: str | None) -> LoginPair | None:
    program = programs.find_on_path("keyring")
    if program is None:
        return None
    for service in _services(url):
        if name:
            result = process.run_command([program, "get", service, name], check=False)
            password = result.stdout.rstrip("\r\n")
            if result.status == 0 and password:
                return (name, password)
        else:
            command = [program, "--mode", "creds", "--output", "json", "get", service]
            result = process.run_command(command, check=False)
            with contextlib.suppress(ValueError, KeyError, TypeError):
                answer = json.loads(result.stdout)
                return (str(answer["username"]), str(answer["password"]))
    return None
