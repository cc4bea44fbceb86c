"""Builds a Dockerfile with podman or buildah.

The base is copied into the builder's storage and the image out of it. Both commands accept the same
options, in the versions of Debian 12 (4.3 and 1.28) and later.
"""

from __future__ import annotations

import collections
import secrets
from pathlib import Path

from imgbuild.container.buildkit import Order
from imgbuild.errors import InputError, WorkFailed
from imgbuild.system import process as processes
from imgbuild.system.reporter import SILENT, Reporter

REMEDY = "Debian: apt-get install {}; the embedded builder needs no other program"
LINES = 20  # of the builder's output, for its error
TAG = "build"
MOUNTED = "file-"  # prefix of the links to secrets


def build(order: Order, out: Path, program: str, *, reporter: Reporter = SILENT) -> None:
    """Build `order` with `program` into the new folder `out`, an OCI layout.

    InputError for unsupported options, WorkFailed, with its last lines, if a step fails. The images
    of this build are removed from its storage.
    """
    command = processes.find(program, remedy=REMEDY.format(program))
    if len(order.platforms) != 1:
        message = f"{program} builds one architecture at a time, not {', '.join(order.platforms)}"
        raise InputError(message, hint="select one with --arch")
    if order.builder is not None or order.cache_from or order.cache_to:
        message = f"{program} does not support --buildx-builder, --cache-from and --cache-to"
        raise InputError(message, hint="omit them, or build with --builder docker")
    base = base_name(order)
    named = f"localhost/imgbuild-{secrets.token_hex(8)}:{TAG}"
    # Links in this folder, since the builder splits paths at colons and commas.
    (out.parent / base).symlink_to(order.base)
    for number, path in enumerate(order.secrets.values()):
        (out.parent / f"{MOUNTED}{number}").symlink_to(path)
    try:
        processes.run([command, "pull", "--quiet", f"oci:{base}"], cwd=out.parent)
        _build(order, [command, *_words(order, base, named)], out.parent, reporter)
        reporter.detail(f"copying {named} out of {program}'s storage")
        processes.run([command, "push", "--quiet", named, f"oci:{out.name}:{TAG}"], cwd=out.parent)
    finally:
        for name in (named, f"localhost/{base}:latest"):
            processes.run([command, "rmi", name], check=False)


def version(program: str) -> str:
    """The output of `program --version`; ToolMissing if it is not installed."""
    command = processes.find(program, remedy=REMEDY.format(program))
    return processes.run([command, "--version"]).stdout.strip()


def base_name(order: Order) -> str:
    """The name of the base in the builder's storage.

    It must always be the same: the image has it in an annotation and a comment.
    """
    return f"imgbuild-base-{order.digest.removeprefix('sha256:')[:16]}"


def _words(order: Order, base: str, named: str) -> list[str]:
    words = ["build", "--pull=never", "--layers=false", "--format=oci", "--identity-label=false"]
    words += [f"--network={order.network}", f"--platform={order.platforms[0]}"]
    words.append(f"--timestamp={order.arguments['SOURCE_DATE_EPOCH']}")
    words.append(f"--build-context=base=container-image://localhost/{base}:latest")
    words += [f"--build-context={name}={place}" for name, place in order.contexts.items()]
    words += [f"--build-arg={name}={value}" for name, value in order.arguments.items()]
    words += [f"--secret=id={name},src={MOUNTED}{n}" for n, name in enumerate(order.secrets)]
    notes = order.annotations.get(order.platforms[0], {})
    words += [f"--annotation={name}={value}" for name, value in notes.items()]
    return [*words, f"--tag={named}", str(order.context)]


def _build(order: Order, command: list[str], folder: Path, reporter: Reporter) -> None:
    last: collections.deque[str] = collections.deque(maxlen=LINES)
    step = ""

    def _line(text: str) -> None:
        nonlocal step
        last.append(text)
        if "STEP " in text:
            step = " ".join(text.split())[:100]
            reporter.info(f"  {step}")
        else:
            reporter.detail(text)

    status = processes.follow(command, _line, cwd=folder)
    if status != 0:
        lines = "".join(f"\n  {line}" for line in last)
        message = f"{order.title}: {step or 'the build'} failed:{lines}"
        hint = f"{order.context / 'Dockerfile'} starts with the commands to build it by hand"
        raise WorkFailed(message, hint=hint)
