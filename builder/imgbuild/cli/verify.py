"""`imgbuild verify` and `sign`: what an image is, who says so, and saying it oneself."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from imgbuild.cli import options
from imgbuild.errors import InputError, IntegrityError
from imgbuild.system.console import console

if TYPE_CHECKING:
    from imgbuild.attest.signing.signer import Signed
    from imgbuild.registry.client import Client
    from imgbuild.registry.reference import Reference
    from imgbuild.verify.checks import Verified
    from imgbuild.verify.expected_lock import Known
    from imgbuild.verify.places import Place

HEAD = ("check", "arch", "outcome", "what was found")

Image = Annotated[
    str,
    typer.Argument(
        metavar="REF|LAYOUT", help="An image in a registry, or the folder of an OCI layout."
    ),
]
Ref = Annotated[str, typer.Argument(metavar="REF", help="An image in a registry.")]
PublicFile = Annotated[
    Path | None,
    typer.Option(
        "--key",
        metavar="FILE",
        help="The public key (PEM: P-256 or Ed25519) of whom is trusted. Without one no signature"
        " is checked.",
        rich_help_panel=options.WORK,
        show_default=False,
    ),
]
PrivateFile = Annotated[
    Path | None,
    typer.Option(
        "--key",
        metavar="FILE",
        help="The private key: PEM (P-256 or Ed25519), encrypted or not, or cosign.key. Its"
        " password is asked for, or taken from $COSIGN_PASSWORD.",
        rich_help_panel=options.WORK,
        show_default=False,
    ),
]
Keyless = Annotated[
    bool,
    typer.Option(
        "--keyless",
        help="Let the cosign program sign with the identity that the CI gives its jobs.",
        rich_help_panel=options.WORK,
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
        rich_help_panel=options.SELECT,
        show_default=False,
    ),
]
LockFile = Annotated[
    Path | None,
    typer.Option(
        "--lock",
        metavar="FILE",
        help="Hold it against this lock.json; digests.json lies beside it.",
        rich_help_panel=options.SELECT,
        show_default=False,
    ),
]
SignedTarget = Annotated[
    str | None,
    typer.Option(
        "--target",
        "-t",
        metavar="NAME",
        help="Sign provenance and SBOMs too, made of the lock of this target in the checkout.",
        rich_help_panel=options.SELECT,
        show_default=False,
    ),
]
SignedLock = Annotated[
    Path | None,
    typer.Option(
        "--lock",
        metavar="FILE",
        help="The same of this lock.json; digests.json lies beside it.",
        rich_help_panel=options.SELECT,
        show_default=False,
    ),
]
Builder = Annotated[
    str | None,
    typer.Option(
        "--builder",
        metavar="ID",
        help="The builder that the provenance must name, which is as good as the key: needs --key.",
        rich_help_panel=options.WORK,
        show_default=False,
    ),
]
Blobs = Annotated[
    bool,
    typer.Option(
        "--blobs",
        help="Read and hash every layer; by default its size is asked for.",
        rich_help_panel=options.WORK,
    ),
]
Rebuild = Annotated[
    bool,
    typer.Option(
        "--rebuild",
        help="Make every layer again from the lock and compare digests.",
        rich_help_panel=options.WORK,
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
    plain_http: options.PlainHttp = None,
    jobs: options.Jobs = 0,
    offline: options.Offline = False,
    matrix: options.MatrixFile = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
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

    options.configure(json=json, quiet=quiet, verbose=verbose)
    if builder is not None and key is None:
        message = "--builder without --key: anybody who can write to the registry can name one"
        raise InputError(message, hint="give the public key of whom you trust: --key FILE")
    again = partial(rebuilt.rebuild, processes=options.processes(jobs), offline=offline)
    wanted = Wanted(
        key=keys.load_public(key) if key else None,
        own=_lock(target, lock, matrix),
        builder=builder,
        whole=blobs,
        rebuild=again if rebuild else None,
    )
    with console.step(f"verifying {image}"):
        found = check(_place(image, plain_http, offline=offline), wanted)
    options.answer(found, _table(found), json=json)
    _judge(found)
    if not found.ok:
        raise typer.Exit(IntegrityError.exit_code)


def sign(
    image: Ref,
    key: PrivateFile = None,
    keyless: Keyless = False,
    target: SignedTarget = None,
    lock: SignedLock = None,
    plain_http: options.PlainHttp = None,
    matrix: options.MatrixFile = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Sign an image in a registry, its provenance and its SBOMs.

    The image is verified first, and is not signed if it is not what its lock says (exit status 9).
    Provenance and SBOMs are made of your own lock, of --target or --lock; what is attached is never
    signed, and without a lock of your own the digest is signed alone. An index and each of its
    manifests are signed. cosign verifies what is written; signing again with the same key writes
    nothing.

    Examples:

        imgbuild sign registry.example/rl:cu124-vllm --target cu124-vllm --key cosign.key

        imgbuild sign registry.example/rl:cu124-vllm --target cu124-vllm --keyless
    """
    from imgbuild.attest.signing import keys
    from imgbuild.verify import sign

    options.configure(json=json, quiet=quiet, verbose=verbose)
    if (key is None) != keyless:
        message = "name a key with --key FILE, or --keyless, and not both"
        raise InputError(message, hint="make a pair with: cosign generate-key-pair")
    private = keys.load_private(key) if key else None
    client, reference = _client(image, plain_http, offline=False, origin=True)
    with console.step(f"signing {image}"):
        made = sign.sign(client, reference, private, _lock(target, lock, matrix))
    options.answer(made, [_signed(item) for item in made], json=json)


def _client(
    image: str, plain_http: list[str] | None, *, offline: bool, origin: bool = False
) -> tuple[Client, Reference]:
    from imgbuild.registry import reference
    from imgbuild.registry.client import Client

    named = reference.parse(image)
    if not named.target:
        message = f"{image} names no image of the repository"
        raise InputError(message, hint=f"add a tag or a digest: {image}:TARGET")
    return Client(plain_http=plain_http or (), offline=offline, origin=origin), named


def _place(image: str, plain_http: list[str] | None, *, offline: bool) -> Place:
    from imgbuild.verify.places import InLayout, InRegistry

    if Path(image).is_dir():
        return InLayout(Path(image))
    return InRegistry(*_client(image, plain_http, offline=offline))


def _lock(target: str | None, file: Path | None, matrix: Path | None) -> Known | None:
    from imgbuild import project
    from imgbuild.verify import expected_lock

    if target is not None and file is not None:
        message = "--target and --lock name a lock both"
        raise InputError(message, hint="leave one of them out")
    if target is not None:
        return expected_lock.of_project(project.find(matrix), target)
    return expected_lock.of_folder(file) if file is not None else None


def _table(found: Verified) -> list[str]:
    rows = [HEAD, *((one.name, one.arch or "", one.outcome, one.detail) for one in found.checks)]
    return options.aligned(rows)


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


def _signed(item: Signed) -> str:
    return " ".join([item.digest, *item.statements])
