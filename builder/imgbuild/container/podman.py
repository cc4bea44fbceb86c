"""podman or buildah builds a Dockerfile: the base goes into its storage, the image comes out of it.

Comes in: an `Order` of one platform. Goes out: an OCI layout, or an error with the builder's last
lines. Both commands take the same words, in the versions of Debian 12 (4.3 and 1.28) and after.
"""

from __future__ import annotations

import collections
import secrets
from pathlib import Path

from imgbuild.container.buildkit import Order
from imgbuild.errors import InputError, WorkFailed
from imgbuild.system import process as processes
from imgbuild.system.console import console

REMEDY = "Debian: apt-get install {}; the embedded builder needs no other"
LINES = 20  # of the builder's words, kept for its error
TAG = "build"
MOUNTED = "file-"  # what the links to secrets are called


def build(order: Order, out: Path, program: str) -> None:
    """Build `order` with `program` into the new folder `out`, an OCI layout.

    InputError for what it cannot do, WorkFailed with its last lines if a step fails. What it kept
    in its storage for this build is removed.
    """
    command = processes.find(program, remedy=REMEDY.format(program))
    if len(order.platforms) != 1:
        message = f"{program} builds one architecture at a time, not {', '.join(order.platforms)}"
        raise InputError(message, hint="name one with --arch")
    if order.builder is not None or order.cache_from or order.cache_to:
        message = f"--buildx-builder, --cache-from and --cache-to are Docker's, not {program}'s"
        raise InputError(message, hint="leave them out, or build with --builder docker")
    base = base_name(order)
    named = f"localhost/imgbuild-{secrets.token_hex(8)}:{TAG}"
    # Links in this folder, since a path with a colon or a comma in it has another meaning.
    (out.parent / base).symlink_to(order.base)
    for number, path in enumerate(order.secrets.values()):
        (out.parent / f"{MOUNTED}{number}").symlink_to(path)
    try:
        processes.run([command, "pull", "--quiet", f"oci:{base}"], cwd=out.parent)
        _build(order, [command, *_words(order, base, named)], out.parent)
        console.detail(f"taking {named} out of {program}'s storage")
        processes.run([command, "push", "--quiet", named, f"oci:{out.name}:{TAG}"], cwd=out.parent)
    finally:
        for name in (named, f"localhost/{base}:latest"):
            processes.run([command, "rmi", name], check=False)


def version(program: str) -> str:
    """What `program` says of its version; ToolMissing if there is none."""
    command = processes.find(program, remedy=REMEDY.format(program))
    return processes.run([command, "--version"]).stdout.strip()


def base_name(order: Order) -> str:
    """The name that the base has in the builder's storage.

    It goes into the image, as an annotation and a comment, so that it must be the same each time.
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


def _build(order: Order, told: list[str], folder: Path) -> None:
    last: collections.deque[str] = collections.deque(maxlen=LINES)
    step = ""
    with console.steps(order.title) as steps:

        def _line(text: str) -> None:
            nonlocal step
            last.append(text)
            console.detail(text)
            if "STEP " in text:
                if step:
                    steps.end(step, step, cached=False)
                step = " ".join(text.split())[:100]
                steps.begin(step, step)

        status = processes.follow(told, _line, cwd=folder)
    if status != 0:
        lines = "".join(f"\n  {line}" for line in last)
        message = f"{order.title}: {step or 'the build'} failed:{lines}"
        hint = f"the head of {order.context / 'Dockerfile'} says how to build it by hand"
        raise WorkFailed(message, hint=hint)
