"""Finds the mirror, a private registry that stores inputs, and downloads inputs from it.

Files from a mirror are checked against the hashes in the lock. A mirror changes where files are
downloaded from, but not the files, locks or digests.

A mirror is set by an option, $IMGBUILD_MIRROR, mirror.json next to the matrix, or the user's
mirror.json, in this order. The value `off` disables the mirror.
"""

from __future__ import annotations

import enum
import os
import threading
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from imgbuild import codec
from imgbuild.assemble.mirror_items import Input
from imgbuild.cache.context import Context
from imgbuild.cache.download import KEPT_NOTE, check_space, fetch_file
from imgbuild.errors import FetchFailed, ImgbuildError, InputError, IntegrityError
from imgbuild.http.client import RequestRefused
from imgbuild.registry.image_reference import Repository, parse_repository
from imgbuild.system import files, threads
from imgbuild.system.amounts import format_count, size_text
from imgbuild.system.reporter import ProgressBar, Reporter
from imgbuild.system.threads import StopFlag
from imgbuild.values import Digest

if TYPE_CHECKING:
    from imgbuild.registry.client import RegistryClient

FILE = "mirror.json"
VARIABLE = "IMGBUILD_MIRROR"
OFF_VALUE = "off"


class MirrorSetting(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A setting that `imgbuild registry mirror use` writes.

    If `only` is set, files that the mirror lacks are not requested from an index. `plain_http`
    allows a registry without TLS on another machine.
    """

    mirror: str
    only: bool = False
    plain_http: bool = False


class MirrorOrigin(enum.StrEnum):
    """Where the mirror is set."""

    OPTION = "--mirror"
    ENVIRONMENT = f"${VARIABLE}"
    PROJECT = "project"
    USER = "user"


class NamedMirror(msgspec.Struct, frozen=True, kw_only=True):
    """A mirror setting and its origin. `place` is the file with the setting, if any."""

    setting: MirrorSetting
    origin: MirrorOrigin
    place: Path | None = None


def user_file() -> Path:
    """Return the file with the user's mirror setting, in $XDG_CONFIG_HOME (default: ~/.config)."""
    return files.xdg_folder("XDG_CONFIG_HOME", ".config") / "imgbuild" / FILE


def find_mirror(root: Path, text: str | None = None, *, only: bool = False) -> NamedMirror | None:
    """Return the mirror setting for the project in `root`, or None if no mirror is used.

    `text` and `only` are values of command-line options. Raises InputError if a setting cannot be
    read, or if `only` is set without a mirror.
    """
    named_mirror = _read_setting(root, text)
    if named_mirror is not None and named_mirror.setting.mirror == OFF_VALUE:
        named_mirror = None
    if named_mirror is None:
        if only:
            message = "--mirror-only requires a mirror, but none is set"
            raise InputError(
                message,
                hint="set a mirror with --mirror HOST/REPOSITORY or `imgbuild registry mirror use`",
            )
        return None
    parse_mirror_repository(
        named_mirror.setting.mirror, str(named_mirror.place or named_mirror.origin.value)
    )
    if only:
        setting = msgspec.structs.replace(named_mirror.setting, only=True)
        named_mirror = msgspec.structs.replace(named_mirror, setting=setting)
    return named_mirror


def parse_mirror_repository(text: str, place: str) -> Repository:
    """Parse the mirror `text` (HOST/REPOSITORY).

    Raises InputError, with `place` in the message, if `text` is invalid or has no host. Without a
    host, the repository would be on Docker Hub.
    """
    try:
        parsed = parse_repository(text)
    except InputError as error:
        message = f"{place}: {error.message}"
        raise InputError(message, hint=error.hint) from error
    if text.partition("/")[0] != parsed.host:
        message = f"{place}: {text!r} does not contain a registry host"
        raise InputError(
            message, hint="use HOST/REPOSITORY, for example registry.example/rl/inputs"
        )
    return parsed


def _read_setting(root: Path, text: str | None) -> NamedMirror | None:
    for origin, named in (
        (MirrorOrigin.OPTION, text),
        (MirrorOrigin.ENVIRONMENT, os.environ.get(VARIABLE)),
    ):
        if named:
            return NamedMirror(setting=MirrorSetting(mirror=named), origin=origin)
    for origin, path in ((MirrorOrigin.PROJECT, root / FILE), (MirrorOrigin.USER, user_file())):
        if path.is_file():
            setting = codec.read_document(
                path,
                MirrorSetting,
                what="mirror setting",
                hint="set the mirror again with `imgbuild registry mirror use`",
            )
            return NamedMirror(setting=setting, origin=origin, place=path)
    return None


class Mirror:
    """A repository from which inputs are downloaded.

    No request is sent before the first download.
    """

    def __init__(
        self,
        repository: Repository,
        *,
        only: bool = False,
        plain_http: Collection[str] = (),
        client: RegistryClient | None = None,
    ) -> None:
        self.repository = repository
        self.only = only
        self._plain_http = tuple(plain_http)
        self._client = client
        self._given_up = False
        self._lock = threading.Lock()

    @classmethod
    def of(
        cls,
        named: NamedMirror | None,
        *,
        any_source: bool = False,
        plain_http: Collection[str] = (),
    ) -> Mirror | None:
        """Return the mirror with the setting `named`, or None if there is no setting.

        If `any_source` is set, other sources are always allowed.
        """
        if named is None:
            return None
        repository, setting = parse_repository(named.setting.mirror), named.setting
        plain = {*plain_http, *([repository.host] if setting.plain_http else [])}
        return cls(repository, only=setting.only and not any_source, plain_http=plain)

    @property
    def client(self) -> RegistryClient:
        """The registry client of this mirror."""
        with self._lock:
            if self._client is None:
                from imgbuild.registry.client import (
                    RegistryClient,  # here: requests is slow to import
                )

                self._client = RegistryClient(plain_http=self._plain_http)
            return self._client

    def fetch_missing(
        self, requested: Sequence[Input], context: Context, *, title: str
    ) -> set[Digest]:
        """Fetch the `requested` files that exist in the mirror into the store.

        Returns the digests of fetched files. If the mirror does not respond, or a file has the
        wrong hash, a warning is printed and the mirror is not used again. If the mirror is the only
        source, FetchFailed or IntegrityError is raised instead.
        """
        store, reporter = context.store, context.reporter
        if not requested or self._given_up:
            return set()
        check_space({item.sha256: item.size for item in requested}, store)
        largest_first = sorted(requested, key=lambda item: (-item.size, item.file))
        with reporter.progress(
            f"{title}: from {self.repository}", sum(i.size for i in requested)
        ) as bar:
            try:
                digests = threads.run_for_each(
                    largest_first,
                    lambda item, stop: self._fetch(item, context, bar, stop),
                    retained=KEPT_NOTE,
                )
            except FetchFailed as error:
                if self.only:
                    raise
                self._give_up(error, reporter)
                digests = [item.digest if item.is_in(store) else None for item in largest_first]
        fetched = {digest for digest in digests if digest is not None}
        size = sum(item.size for item in requested if item.digest in fetched)
        if context.transfer is not None:
            context.transfer.count_downloaded(
                {item.sha256 for item in requested if item.digest in fetched}
            )
        reporter.info(
            f"{title}: {len(fetched)} of {format_count(len(requested), 'file')}, {size_text(size)},"
            f" from the mirror {self.repository}"
        )
        return fetched

    def _give_up(self, error: ImgbuildError, reporter: Reporter) -> None:
        self._given_up = True
        reporter.warn(f"skipping the mirror {self.repository}: {error.message}")

    def _fetch(
        self, item: Input, context: Context, bar: ProgressBar, stop: StopFlag
    ) -> Digest | None:
        """Fetch a file. Returns None if the mirror does not have the file."""
        request = self.client.file_request(self.repository, item.as_locked_file, layer=item.layer)
        try:
            fetch_file(request, self.client.context(context), bar.advance, stop)
        except RequestRefused as refused:
            if refused.status != 404:
                raise
            context.reporter.detail(f"{item.file}: not in {self.repository}")
            bar.advance(item.size)
            return None
        except IntegrityError as error:
            if self.only:
                raise
            message = f"skipping {item.file} in {self.repository}: {error.message}"
            context.reporter.warn(message)
            return None
        return item.digest
