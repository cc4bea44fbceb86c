"""Implements `imgbuild cache`, which shows, prunes and verifies the cache."""

from __future__ import annotations

import datetime
import shutil
from typing import Annotated

import msgspec
import typer

from imgbuild.cache import prune
from imgbuild.cache.prune import Removal
from imgbuild.cache.settings import parse_size, size_limit
from imgbuild.cache.store import Store
from imgbuild.cli._help import HELP, VerbGroup, create_group, register_verb
from imgbuild.cli._output import align_columns, format_count, print_result, size_text
from imgbuild.cli._verb import create_verb, option
from imgbuild.errors import InputError, IntegrityError
from imgbuild.system.console import console

app = typer.Typer(
    cls=VerbGroup,
    context_settings=HELP,
    no_args_is_help=True,
    help="Show, clean up or verify the cache of downloads and layers.\n\nThe cache is in "
    "$IMGBUILD_CACHE, else $XDG_CACHE_HOME/imgbuild, else ~/.cache/imgbuild. Entries can be "
    "removed at any time, even during builds: entries in use are kept, and removed entries "
    "are downloaded, built or compiled again when needed. $IMGBUILD_CACHE_SIZE, such as "
    "200G, limits the size of the cache.",
)


# The kinds of entries → their names in output.
KINDS = {
    "file": "files",
    "blob": "layers",
    "unpacked": "unpacked layers",
    "root": "root folders of images and builds",
    "kernels": "kernel caches of images",
    "fact": "facts",
    "partial": "interrupted downloads",
}


class CacheKind(msgspec.Struct, frozen=True, kw_only=True):
    """The number of cache entries of one kind, and the total of their sizes in bytes."""

    kind: str
    entries: int
    size: int


class CacheInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The size of the cache in bytes.

    `limit` is $IMGBUILD_CACHE_SIZE, and `free` the free disk space.
    """

    path: str
    size: int
    in_use: int
    limit: int | None
    free: int
    kinds: tuple[CacheKind, ...]


@create_verb
def show_cache_info() -> None:
    """Show the cache folder, and the size of each kind of entry.

    Example:

        imgbuild cache info
    """
    store = Store.open()
    entries = prune.list_entries(store)
    names = sorted({entry.kind for entry in entries})
    groups = {name: [entry.size for entry in entries if entry.kind == name] for name in names}
    value = CacheInfo(
        path=str(store.root),
        size=sum(entry.size for entry in entries),
        in_use=sum(entry.size for entry in entries if entry.in_use),
        limit=size_limit(),
        free=shutil.disk_usage(store.root).free,
        kinds=tuple(
            CacheKind(kind=name, entries=len(sizes), size=sum(sizes))
            for name, sizes in groups.items()
        ),
    )
    cap = "no limit (IMGBUILD_CACHE_SIZE is not set)"
    if value.limit is not None:
        cap = f"limit {size_text(value.limit)}"
    lines = [value.path]
    lines += [
        f"{KINDS.get(kind.kind, kind.kind)}: {kind.entries}, {size_text(kind.size)}"
        for kind in value.kinds
    ]
    lines.append(f"total: {size_text(value.size)}, {size_text(value.in_use)} in use, {cap}")
    lines.append(f"free on the disk: {size_text(value.free)}")
    print_result(value, lines)


@create_verb
def list_entries() -> None:
    """List the entries of the cache, least recently used first.

    Lists files, layers and interrupted downloads. --verbose also lists facts about files.

    Columns: kind, size in bytes, last use (UTC), whether a running process uses it, sha256, name.

    Example:

        imgbuild cache list | sort -k2 -n | tail
    """
    entries = [
        entry
        for entry in prune.list_entries(Store.open())
        if console.verbosity > 0 or entry.kind != "fact"
    ]
    rows = []
    for entry in entries:
        used = datetime.datetime.fromtimestamp(entry.used, datetime.UTC)
        state = "used" if entry.in_use else "idle"
        moment = f"{used:%Y-%m-%dT%H:%M:%SZ}"
        rows.append((entry.kind, str(entry.size), moment, state, entry.sha256, entry.label))
    print_result(entries, align_columns(rows, right=frozenset({1})))


@create_verb
def prune_cache(
    max_size: Annotated[
        str | None,
        option(
            "--max-size",
            "The size to reduce the cache to, such as 500M, 20G or 20GiB. Default: "
            "$IMGBUILD_CACHE_SIZE.",
            metavar="SIZE",
            often=True,
            setting=True,
        ),
    ] = None,
) -> None:
    """Remove old entries until the cache is no larger than the given size.

    The least recently used entries are removed first. Entries that a running process uses are kept,
    even if the cache then exceeds the size.

    Example:

        imgbuild cache prune --max-size 20G
    """
    limit = size_limit() if max_size is None else parse_size(max_size, "--max-size")
    if limit is None:
        message = "no maximum size is specified"
        raise InputError(message, hint="pass --max-size 20G, or set IMGBUILD_CACHE_SIZE")
    _report_removal(prune.prune_cache(Store.open(), limit))


@create_verb
def clear_cache() -> None:
    """Remove all entries that are not in use.

    Example:

        imgbuild cache clear
    """
    _report_removal(prune.clear_cache(Store.open()))


@create_verb
def verify_cache() -> None:
    """Verify the hashes of all entries, and remove damaged entries.

    Exits with status 9 if an entry was damaged. Removed entries are downloaded or built again when
    needed.

    Example:

        imgbuild cache verify
    """
    store = Store.open()
    total = sum(entry.size for entry in prune.list_entries(store) if entry.kind in ("file", "blob"))
    with console.progress("Hashing the cache", total) as bar:
        damaged = prune.verify_entries(store, bar.advance)
    print_result(
        damaged, align_columns([(entry.kind, entry.sha256, entry.label) for entry in damaged])
    )
    if not damaged:
        console.info("no damage found")
        return
    message = (
        f"{format_count(len(damaged), 'damaged entry', 'damaged entries')} of {store.root} removed"
    )
    hint = "check the disk for errors; the next build downloads the files again"
    if not console.json:
        raise IntegrityError(message, hint=hint)
    console.error(message, hint=hint)  # the result is on stdout already
    raise typer.Exit(IntegrityError.exit_code)


def _report_removal(value: Removal) -> None:
    line = (
        f"removed {format_count(value.removed, 'entry', 'entries')}, {size_text(value.freed)};"
        f" {size_text(value.left)} left, {size_text(value.in_use)} of it in use"
    )
    print_result(value, [line])


register_verb(app, "info", show_cache_info)
register_verb(app, "list", list_entries)
register_verb(app, "prune", prune_cache)
register_verb(app, "clear", clear_cache)
register_verb(app, "verify", verify_cache)
COMMAND = create_group(app)
