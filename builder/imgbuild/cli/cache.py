"""`imgbuild cache`: where the cache is, what is in it, and what can go."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from imgbuild.cli import _options
from imgbuild.system.console import console

if TYPE_CHECKING:
    from imgbuild.cache.prune import Removal

app = typer.Typer(
    no_args_is_help=True,
    help="Look after the cache of downloaded files and layers.\n\n"
    "It stands in $IMGBUILD_CACHE, else $XDG_CACHE_HOME/imgbuild, else ~/.cache/imgbuild."
    " Everything in it can be had again, so removing it is safe, also while builds run:"
    " what they use stays."
    " $IMGBUILD_CACHE_SIZE (for example 200G) caps it.",
)


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """How many entries of one kind the cache holds, and their bytes."""

    kind: str
    entries: int
    size: int


class Info(msgspec.Struct, frozen=True, kw_only=True):
    """The cache in numbers. `limit` is $IMGBUILD_CACHE_SIZE, `free` what its disk has left."""

    path: str
    size: int
    in_use: int
    limit: int | None
    free: int
    kinds: tuple[Kind, ...]


def size_text(size: int) -> str:
    """A number of bytes for people: 1.5 GB."""
    number, unit = float(size), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if number < 1000:
            break
        number, unit = number / 1000, larger
    return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"


@app.command("info")
def info(
    json: _options.Json = False, quiet: _options.Quiet = False, verbose: _options.Verbose = False
) -> None:
    """Say where the cache is and how large each kind of entry is.

    Example:

        imgbuild cache info
    """
    import shutil

    from imgbuild.cache import prune
    from imgbuild.cache.store import Store, size_limit

    _options.configure(json=json, quiet=quiet, verbose=verbose)
    store = Store.open()
    found = prune.entries(store)
    names = sorted({entry.kind for entry in found})
    groups = {name: [entry.size for entry in found if entry.kind == name] for name in names}
    value = Info(
        path=str(store.root),
        size=sum(entry.size for entry in found),
        in_use=sum(entry.size for entry in found if entry.in_use),
        limit=size_limit(),
        free=shutil.disk_usage(store.root).free,
        kinds=tuple(
            Kind(kind=name, entries=len(sizes), size=sum(sizes)) for name, sizes in groups.items()
        ),
    )
    cap = "no cap (IMGBUILD_CACHE_SIZE)" if value.limit is None else f"cap {size_text(value.limit)}"
    lines = [value.path]
    lines += [f"{kind.kind}s: {kind.entries}, {size_text(kind.size)}" for kind in value.kinds]
    lines.append(f"total: {size_text(value.size)}, {size_text(value.in_use)} in use, {cap}")
    lines.append(f"free on its disk: {size_text(value.free)}")
    _options.answer(value, lines, json=json)


@app.command("path")
def path(
    json: _options.Json = False, quiet: _options.Quiet = False, verbose: _options.Verbose = False
) -> None:
    """Print the folder of the cache.

    Example:

        du -sh "$(imgbuild cache path)"
    """
    from imgbuild.cache.store import default_root

    _options.configure(json=json, quiet=quiet, verbose=verbose)
    root = str(default_root())
    _options.answer({"path": root}, [root], json=json)


@app.command("list")
def list_entries(
    json: _options.Json = False, quiet: _options.Quiet = False, verbose: _options.Verbose = False
) -> None:
    """List files, layers and interrupted downloads, least recently used first; facts only with -v.

    Columns: kind, size in bytes, last use (UTC), whether a running process uses it, sha256, name.

    Example:

        imgbuild cache list | sort -k2 -n | tail
    """
    from imgbuild.cache import prune
    from imgbuild.cache.store import Store

    _options.configure(json=json, quiet=quiet, verbose=verbose)
    found = [entry for entry in prune.entries(Store.open()) if verbose or entry.kind != "fact"]
    lines = []
    for entry in found:
        used = datetime.datetime.fromtimestamp(entry.used, datetime.UTC)
        state = "used" if entry.in_use else "idle"
        columns = (entry.kind, entry.size, f"{used:%Y-%m-%dT%H:%M:%SZ}", state, entry.sha256)
        lines.append("\t".join((*map(str, columns), entry.label)))
    _options.answer(found, lines, json=json)


@app.command("prune")
def prune(
    max_size: Annotated[
        str | None,
        typer.Option(
            "--max-size",
            metavar="SIZE",
            help="Keep at most this much: 500M, 20G, 20GiB. Default: $IMGBUILD_CACHE_SIZE.",
            show_default=False,
        ),
    ] = None,
    json: _options.Json = False,
    quiet: _options.Quiet = False,
    verbose: _options.Verbose = False,
) -> None:
    """Remove the least recently used entries until the cache is small enough.

    What a running process uses stays, even if the cache is then larger than asked for.

    Example:

        imgbuild cache prune --max-size 20G
    """
    from imgbuild.cache import prune
    from imgbuild.cache.store import Store, parse_size, size_limit
    from imgbuild.errors import InputError

    _options.configure(json=json, quiet=quiet, verbose=verbose)
    limit = size_limit() if max_size is None else parse_size(max_size, "--max-size")
    if limit is None:
        message = "prune needs a size to keep"
        raise InputError(message, hint="--max-size 20G, or set IMGBUILD_CACHE_SIZE")
    _removed(prune.prune(Store.open(), limit), json=json)


@app.command("clear")
def clear(
    json: _options.Json = False, quiet: _options.Quiet = False, verbose: _options.Verbose = False
) -> None:
    """Remove everything that no running process uses.

    Example:

        imgbuild cache clear
    """
    from imgbuild.cache import prune
    from imgbuild.cache.store import Store

    _options.configure(json=json, quiet=quiet, verbose=verbose)
    _removed(prune.clear(Store.open()), json=json)


@app.command("verify")
def verify(
    json: _options.Json = False, quiet: _options.Quiet = False, verbose: _options.Verbose = False
) -> None:
    """Hash everything and remove what is damaged; exit status 9 if anything was.

    What was removed is downloaded or made again when it is next needed.

    Example:

        imgbuild cache verify
    """
    from imgbuild.cache import prune
    from imgbuild.cache.store import Store
    from imgbuild.errors import IntegrityError

    _options.configure(json=json, quiet=quiet, verbose=verbose)
    store = Store.open()
    total = sum(entry.size for entry in prune.entries(store) if entry.kind in ("file", "blob"))
    with console.progress("Hashing the cache", total) as bar:
        damaged = prune.verify(store, bar.advance)
    names = [f"{entry.kind}\t{entry.sha256}\t{entry.label}" for entry in damaged]
    _options.answer(damaged, names, json=json)
    if not damaged:
        console.info("all intact")
        return
    message = f"{len(damaged)} entries of {store.root} were damaged and are removed"
    hint = "check the disk; then build again to fetch them anew"
    if not json:
        raise IntegrityError(message, hint=hint)
    console.error(message, hint=hint)  # the answer stands on stdout already
    raise typer.Exit(IntegrityError.exit_code)


def _removed(value: Removal, *, json: bool) -> None:
    line = (
        f"removed {value.removed} entries, {size_text(value.freed)};"
        f" {size_text(value.left)} left, {size_text(value.in_use)} of it in use"
    )
    _options.answer(value, [line], json=json)
