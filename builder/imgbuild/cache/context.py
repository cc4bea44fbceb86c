"""Defines the context of commands that fetch files: cache, HTTP client, reporter, progress."""

from __future__ import annotations

from pathlib import Path

import msgspec

from imgbuild.cache.store import Store
from imgbuild.cache.transfer import Transfer
from imgbuild.http.client import HttpClient
from imgbuild.system.reporter import SILENT_REPORTER, Reporter


class Context(msgspec.Struct, frozen=True):
    """The cache, the HTTP client and the reporter of a command.

    If `transfer` is set, the downloads of several steps are reported together.
    """

    store: Store
    http: HttpClient
    reporter: Reporter = SILENT_REPORTER
    transfer: Transfer | None = None

    @classmethod
    def open(
        cls,
        reporter: Reporter = SILENT_REPORTER,
        *,
        offline: bool = False,
        root: Path | None = None,
    ) -> Context:
        """Open the cache at `root` (default: `settings.default_root`), and create a client."""
        return cls(
            Store.open(root, reporter), HttpClient(offline=offline, reporter=reporter), reporter
        )
