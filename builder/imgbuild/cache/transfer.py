"""Reports the total size of a command's downloads, and shows their progress."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterable, Iterator, Mapping

from imgbuild.cache.store import Store
from imgbuild.system.amounts import format_count, size_text
from imgbuild.system.reporter import ProgressBar, Reporter
from imgbuild.values import Bytes, Sha256


def partial_bytes(store: Store, hashes: Iterable[Sha256]) -> Bytes:
    """Return the total size of the partial downloads of these files, in bytes."""
    paths = (store.root / "partial" / name for name in hashes)
    return sum(path.stat().st_size for path in paths if path.exists())


class Transfer:
    """Files to download in several steps, with their sizes by sha256.

    `every` is the number of all files, including files in the cache. `here` is the number of bytes
    of `files` in partial downloads.
    """

    def __init__(
        self, files: Mapping[Sha256, Bytes], every: int, reporter: Reporter, *, here: Bytes = 0
    ) -> None:
        self._left = dict(files)
        self._every = every
        self._here = here
        self._reporter = reporter
        self._files = 0
        self._done = 0
        self._total = sum(files.values())
        self._seconds = 0.0

    def announce_total(self) -> None:
        """Report the number of files and bytes to download."""
        files = f"{len(self._left)} of {format_count(self._every, 'file')}"
        size = f", {size_text(max(self._total - self._here, 0))}" if self._left else ""
        size += f" ({size_text(self._here)} already downloaded)" if self._here else ""
        self._reporter.info(f"{files} to download{size}")

    @contextlib.contextmanager
    def progress_bar(self, sizes: Mapping[Sha256, Bytes]) -> Iterator[ProgressBar]:
        """Show the progress bar while the files in `sizes` are downloaded.

        Files that were not announced, such as those requested by an audit, are added.
        """
        more = {key: size for key, size in sizes.items() if key not in self._left}
        if more:
            self._left |= more
            self._total += sum(more.values())
            self._reporter.info(
                f"{format_count(len(more), 'more file')} to download,"
                f" {size_text(sum(more.values()))}"
            )
        started = time.monotonic()
        with self._reporter.progress("downloading", self._total, done=self._done) as bar:
            yield bar
        self._seconds += time.monotonic() - started
        self.count_downloaded(sizes)

    def count_downloaded(self, keys: Collection[Sha256]) -> None:
        """Count files as downloaded."""
        for key in keys:
            size = self._left.pop(key, None)
            if size is not None:
                self._files += 1
                self._done += size

    def close(self) -> None:
        """Report the downloaded files, if any."""
        if self._files:
            what = (
                f"downloaded {self._files} of {format_count(self._files + len(self._left), 'file')}"
            )
            self._reporter.info(f"{what}, {size_text(self._done)}, in {self._seconds:.1f} s")
