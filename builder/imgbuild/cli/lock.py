"""Implements `imgbuild lock`, which creates locks and image digests from the matrix."""

from __future__ import annotations

import time
from typing import Annotated

from imgbuild.cli._help import create_command
from imgbuild.cli._options import AGAIN, CHECK, KEEP, Jobs, Offline, process_count
from imgbuild.cli._output import fold_lines, print_result
from imgbuild.cli._sessions import select_targets
from imgbuild.cli._targets import WholeTargets
from imgbuild.cli._verb import create_verb, option
from imgbuild.errors import InputError, SomeFailed
from imgbuild.pipeline import cached_code_audit, targets
from imgbuild.pipeline.session import SessionOptions, open_session
from imgbuild.show import image_diff
from imgbuild.system.console import console


@create_verb
def lock(
    selection: WholeTargets,
    check: Annotated[bool, CHECK("Applies to locks and digests.")] = False,
    diff: Annotated[
        str | None,
        option(
            "--diff",
            "Print the changes since a git revision: changed packages, and the size to pull.",
            metavar="REV",
            often=True,
        ),
    ] = None,
    keep: Annotated[
        bool | None,
        KEEP("Applies to wheels. Default: --keep for one target, --drop for several."),
    ] = None,
    again: Annotated[bool, AGAIN("Requires --all.")] = False,
    jobs: Jobs = 0,
    offline: Offline = False,
) -> None:
    """Lock all inputs of targets by hash.

    Solves the requirements of each target, computes the digests of its images, and writes
    images/TARGET/lock.json, digests.json and requirements-ARCH.txt. Also updates
    images/layers.json. If a target fails, the other targets are still locked. To continue after an
    interrupt, run the command again.

    Examples:

        imgbuild lock cu124-vllm

        imgbuild lock --check --all

        imgbuild lock --all

        imgbuild lock --diff main cu124-vllm
    """
    _refuse_options(diff, check=check)
    if again and (check or diff is not None):
        other = "--check" if check else "--diff"
        message = f"--again and {other} cannot be combined"
        raise InputError(message, hint="omit one of these options")
    how = SessionOptions(jobs=process_count(jobs), offline=offline)
    session = open_session(selection.matrix, how)
    chosen = select_targets(selection, session)
    if check:
        current = targets.check_all(session, chosen)
        print_result(current, fold_lines(f"{item.target} {item.digest}" for item in current))
        return
    if diff is not None:
        differences = targets.diff_all(session, chosen, diff)
        print_result(
            differences,
            fold_lines(line for item in differences for line in image_diff.diff_lines(item)),
        )
        return
    drop = len(chosen) > 1 if keep is None else not keep
    started = time.monotonic()
    done = targets.lock_all(session, chosen, drop=drop, again=again or not selection.everything)
    took = (time.monotonic() - started) / max(1, len(done.target_digests))
    for item in done.target_digests:
        for arch in list(item.arch)[:1]:  # code is the same for all
            cached_code_audit.warn_of_code_errors(session, item.target, arch, took)
    lines = [f"{item.target} {item.digest}" for item in done.target_digests]
    if done.failed and console.json:
        raise SomeFailed(done.failed)  # the error is the result
    print_result(done.target_digests, fold_lines(lines))
    if done.failed:
        raise SomeFailed(done.failed)


def _refuse_options(diff: str | None, *, check: bool) -> None:
    if check and diff is not None:
        message = "--check and --diff cannot be combined"
        raise InputError(
            message, hint="omit --check, because --diff also fails if the lock is stale"
        )
    if diff is not None and (not diff or diff.startswith("-")):
        message = f"--diff requires a git revision, not {diff or 'an empty string'}"
        raise InputError(
            message, hint="specify a commit, a branch or a tag: imgbuild lock --diff REV"
        )


COMMAND = create_command(lock)
