"""`imgbuild lock`: from the matrix to a lock and its seal; `--check` and `--diff` look at them."""

from __future__ import annotations

from typing import Annotated

import typer

from imgbuild.cli import _options
from imgbuild.errors import InputError, SomeFailed

Check = Annotated[
    bool,
    typer.Option(
        "--check",
        help="Say whether locks and seals follow from the matrix. Solves and"
        " fetches nothing; exit status 5 if one does not.",
        rich_help_panel=_options.WORK,
    ),
]
Diff = Annotated[
    str | None,
    typer.Option(
        "--diff",
        metavar="REV",
        help="Say what changed since a git revision: packages, and bytes to pull.",
        rich_help_panel=_options.WORK,
        show_default=False,
    ),
]
Keep = Annotated[
    bool | None,
    typer.Option(
        "--keep/--drop",
        help="Keep downloaded wheels in the cache, or drop each when it"
        " is sealed. Default: keep for one target, drop for several.",
        rich_help_panel=_options.WORK,
        show_default=False,
    ),
]
Again = Annotated[
    bool,
    typer.Option(
        "--again",
        help="With --all: also those whose lock is current. Without it, such a run goes on"
        " where it was interrupted.",
        rich_help_panel=_options.WORK,
    ),
]


def lock(
    names: _options.Names = None,
    target: _options.Targets = None,
    everything: _options.Everything = False,
    check: Check = False,
    diff: Diff = None,
    keep: Keep = None,
    again: Again = False,
    jobs: _options.Jobs = 0,
    offline: _options.Offline = False,
    matrix: _options.MatrixFile = None,
    json: _options.Json = False,
    quiet: _options.Quiet = False,
    verbose: _options.Verbose = False,
) -> None:
    """Resolve targets, lock every input by hash, and seal the digests of their images.

    Writes images/TARGET/lock.json, digests.json and requirements-ARCH.txt, and adds to
    images/layers.json. With several targets one that fails does not stop the others.
    An interrupted run goes on where it stopped.

    Examples:

        imgbuild lock --target cu124-vllm

        imgbuild lock --check --all

        imgbuild lock --all

        imgbuild lock --diff main cu124-vllm
    """
    from imgbuild.pipeline import targets
    from imgbuild.show import diff as diffs

    _options.configure(json=json, quiet=quiet, verbose=verbose)
    _refuse(diff, check=check)
    if again and (check or diff is not None):
        message = f"--again is given beside {'--check' if check else '--diff'}, which locks nothing"
        raise InputError(message, hint="leave one of them out")
    how = targets.Options(jobs=_options.processes(jobs), offline=offline)
    session = targets.open_session(matrix, how)
    chosen = session.select(_options.wanted(names, target), everything=everything, arches=[])
    if check:
        current = targets.check_all(session, chosen)
        _options.answer(current, [f"{item.target} {item.digest}" for item in current], json=json)
        return
    if diff is not None:
        found = targets.diff_all(session, chosen, diff)
        _options.answer(found, [line for item in found for line in diffs.words(item)], json=json)
        return
    drop = len(chosen) > 1 if keep is None else not keep
    done = targets.lock_all(session, chosen, drop=drop, again=again or not everything)
    lines = [f"{item.target} {item.digest}" for item in done.sealed]
    _options.answer(done.sealed, lines, json=json and not done.failed)
    if done.failed:
        raise SomeFailed(done.failed)


def _refuse(diff: str | None, *, check: bool) -> None:
    """InputError for `--diff` beside `--check`, or without a revision."""
    if check and diff is not None:
        message = "--check and --diff are two questions"
        raise InputError(message, hint="ask one at a time; --diff refuses a stale lock as well")
    if diff is not None and (not diff or diff.startswith("-")):
        message = f"--diff needs a git revision, {diff or 'an empty word'} is none"
        raise InputError(message, hint="name a commit, a branch or a tag: imgbuild lock --diff REV")
