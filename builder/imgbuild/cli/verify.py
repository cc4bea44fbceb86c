"""`imgbuild verify`: what an image is, and who signed it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from imgbuild.cli import _options, _published
from imgbuild.errors import InputError, IntegrityError
from imgbuild.system.console import console

if TYPE_CHECKING:
    from imgbuild.oci.image import Source
    from imgbuild.verify.checks import Verified

HEAD = ("check", "arch", "outcome", "what was found")

Image = Annotated[
    str,
    typer.Argument(
        metavar="REF|LAYOUT", help="An image in a registry, or the folder of an OCI layout."
    ),
]
PublicFile = Annotated[
    Path | None,
    typer.Option(
        "--key",
        metavar="FILE",
        help="The public key (PEM: P-256 or Ed25519) of whom is trusted. Without one no signature"
        " is checked.",
        rich_help_panel=_options.WORK,
        show_default=False,
    ),
]
OneTarget = Annotated[
    str | None,
    typer.Option(
        "--target",
        "-t",
        metavar="NAME",
        help="Hold the image against the lock of this target in the checkout. By default against"
        " the lock that is attached to it.",
        rich_help_panel=_options.SELECT,
        show_default=False,
    ),
]
LockFile = Annotated[
    Path | None,
    typer.Option(
        "--lock",
        metavar="FILE",
        help="Hold it against this lock.json; digests.json lies beside it.",
        rich_help_panel=_options.SELECT,
        show_default=False,
    ),
]
Builder = Annotated[
    str | None,
    typer.Option(
        "--builder",
        metavar="ID",
        help="The builder that the provenance must name, which is as good as the key: needs --key.",
        rich_help_panel=_options.WORK,
        show_default=False,
    ),
]
Blobs = Annotated[
    bool,
    typer.Option(
        "--blobs",
        help="Read and hash every layer; by default its size is asked for.",
        rich_help_panel=_options.WORK,
    ),
]
Rebuild = Annotated[
    bool,
    typer.Option(
        "--rebuild",
        help="Make every layer again from the lock and compare digests.",
        rich_help_panel=_options.WORK,
    ),
]


def verify(
    image: Image,
    key: PublicFile = None,
    target: OneTarget = None,
    lock: LockFile = None,
    builder: Builder = None,
    blobs: Blobs = False,
    rebuild: Rebuild = False,
    plain_http: _options.PlainHttp = None,
    jobs: _options.Jobs = 0,
    offline: _options.Offline = False,
    matrix: _options.MatrixFile = None,
    json: _options.Json = False,
    quiet: _options.Quiet = False,
    verbose: _options.Verbose = False,
) -> None:
    """Check an image: who signed it, what it was made of, and that it is what its lock says.

    Needs nothing but the image: it carries its lock. Each check is a line: passed, failed, or not
    checked and why. Exit status 9 if one failed, if one that an option asks for cannot be made, or
    if none passed. Without --key or a lock of your own, --rebuild builds what the image's owner
    chose.

    Examples:

        imgbuild verify registry.example/rl:cu124-vllm --key cosign.pub

        imgbuild verify registry.example/rl:cu124-vllm --key cosign.pub --rebuild

        imgbuild verify build/cu124-vllm --target cu124-vllm --blobs
    """
    from imgbuild.attest.signing import keys
    from imgbuild.verify import rebuilt
    from imgbuild.verify.verify import Wanted
    from imgbuild.verify.verify import verify as check

    _options.configure(json=json, quiet=quiet, verbose=verbose)
    if builder is not None and key is None:
        message = "--builder without --key: anybody who can write to the registry can name one"
        raise InputError(message, hint="give the public key of whom you trust: --key FILE")
    again = partial(rebuilt.rebuild, processes=_options.processes(jobs), offline=offline)
    wanted = Wanted(
        key=keys.load_public(key) if key else None,
        own=_published.lock(target, lock, matrix),
        builder=builder,
        whole=blobs,
        rebuild=again if rebuild else None,
    )
    with console.step(f"verifying {image}"):
        found = check(_place(image, plain_http, offline=offline), wanted, console)
    _options.answer(found, _table(found), json=json)
    _judge(found)
    if not found.ok:
        raise typer.Exit(IntegrityError.exit_code)


def _place(image: str, plain_http: list[str] | None, *, offline: bool) -> Source:
    from imgbuild.oci.image import in_layout
    from imgbuild.registry.image import InRegistry

    if Path(image).is_dir():
        return in_layout(Path(image))
    return InRegistry(*_published.client(image, plain_http, offline=offline))


def _table(found: Verified) -> list[str]:
    rows = [HEAD, *((one.name, one.arch or "", one.outcome, one.detail) for one in found.checks)]
    return _options.aligned(rows)


def _judge(found: Verified) -> None:
    from imgbuild.verify.checks import Outcome

    order = (Outcome.FAILED, Outcome.PASSED, Outcome.UNCHECKED)
    count = {one: sum(each.outcome is one for each in found.checks) for one in order}
    told = ", ".join(f"{number} {outcome}" for outcome, number in count.items() if number)
    if found.ok:
        console.info(f"{found.reference} is {found.digest}: {told}")
    elif not count[Outcome.FAILED]:
        console.error(
            f"nothing of {found.reference} could be checked: {told}",
            hint="name a lock with --target or --lock, or a public key with --key",
        )
    else:
        console.error(f"{found.reference} is not what it should be: {told}")
