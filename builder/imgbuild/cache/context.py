"""The context of every stage that fetches: cache, HTTP client, offline flag, reporter, progress."""

from __future__ import annotations

from pathlib import Path

import msgspec

from imgbuild.cache.store import Store
from imgbuild.cache.transfer import Transfer
from imgbuild.http.client import Http
from imgbuild.system.reporter import SILENT, Reporter


class Context(msgspec.Struct, frozen=True):
    """The cache, the HTTP client and the reporter of one run.

    `transfer` counts the downloads of several steps as one; without it each step reports
    separately.
    """

    store: Store
    http: Http
    reporter: Reporter = SILENT
    transfer: Transfer | None = None

    @classmethod
    def open(
        cls, reporter: Reporter = SILENT, *, offline: bool = False, root: Path | None = None
    ) -> Context:
        """The cache at `root` (see `settings.default_root`) and a client, both with `reporter`."""
        return cls(Store.open(root, reporter), Http(offline=offline, reporter=reporter), reporter)
