"""`imgbuild doctor` says which target fits this machine, and why the others do not."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import typer

from imgbuild.cli import options

if TYPE_CHECKING:
    from imgbuild.doctor import Diagnosis
    from imgbuild.host import Host


def doctor(
    names: options.Names = None,
    target: options.Targets = None,
    matrix: options.MatrixFile = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Say which locked targets this machine can run: by its driver, GPUs and architecture.

    Reads nvidia-smi where there is one, /proc, and what docker, podman and apptainer say of
    themselves; needs no GPU and changes nothing. With names, only those targets are judged, and the
    exit status is 1 if one of them does not fit. An image brings its own glibc: that of the machine
    counts where its wheels are installed without it, and is only remarked on.

    Examples:

        imgbuild doctor

        imgbuild doctor cu130-vllm

        imgbuild doctor --json
    """
    from imgbuild import doctor as judging
    from imgbuild.cli.locked import choose
    from imgbuild.errors import WorkFailed
    from imgbuild.project import find

    options.configure(json=json, quiet=quiet, verbose=verbose)
    project = find(matrix)
    wanted = options.wanted(names, target)
    chosen = choose(project, wanted, everything=not wanted, arches=[])
    every = choose(project, [], everything=True, arches=[]) if wanted else chosen
    host = _read()
    asked = {one.lock.target for one in chosen}
    all_of = judging.diagnose(host, [judging.offer(project.images, one.lock) for one in every])
    found = judging.only(all_of, asked)
    options.answer(found, list(_lines(found)), json=json)
    unfit = [one.target for one in found.verdicts if not one.fits] if wanted else []
    if unfit and json:  # the answer has been given; an error of its own would be a second one
        raise typer.Exit(WorkFailed.exit_code)
    if unfit:
        message = f"{', '.join(unfit)} does not fit this machine"
        hint = f"the newest target that does is {found.best}" if found.best else None
        raise WorkFailed(message, hint=hint)


def _read() -> Host:
    from imgbuild.host import read_host

    return read_host()


def _lines(found: Diagnosis) -> Iterable[str]:
    yield from _machine(found.host)
    yield from (f"note: {remark}" for remark in found.remarks)
    yield ""
    from imgbuild.doctor import tells

    fits = "fits" if tells(found.host) else "cannot be told"
    for verdict in found.verdicts:
        yield f"{verdict.target}: {fits if verdict.fits else 'does not fit'}"
        yield from (f"  {text}" for text in (*verdict.reasons, *verdict.remarks))
    yield ""
    if found.best:
        yield f"use: {found.best}"
    elif not tells(found.host):
        yield "which target to use cannot be told without a GPU and its driver"
    else:
        yield "no target fits this machine"


def _machine(host: Host) -> Iterable[str]:
    rows = [
        ("machine", f"{host.arch or 'unknown'}, Linux {host.kernel}, glibc {host.glibc or '?'}"),
        ("driver", host.driver or "none"),
    ]
    rows += [
        ("GPU", f"{gpu.name}, {gpu.memory >> 30} GB, compute capability {gpu.capability or '?'}")
        for gpu in host.gpus
    ]
    rows += [
        (one.name, one.version + (", GPUs" if one.gpus else ", no GPUs")) for one in host.engines
    ]
    rows.append(("shared memory", f"{host.shared_memory >> 20} MB"))
    yield from options.aligned(rows)
