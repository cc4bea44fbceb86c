"""`imgbuild sign`: sign an image in a registry."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from imgbuild.cli import _options, _published
from imgbuild.errors import InputError
from imgbuild.system.console import console

if TYPE_CHECKING:
    from imgbuild.attest.signing.signer import Signed

Ref = Annotated[str, typer.Argument(metavar="REF", help="An image in a registry.")]
PrivateFile = Annotated[
    Path | None,
    typer.Option(
        "--key",
        metavar="FILE",
        help="The private key: PEM (P-256 or Ed25519), encrypted or not, or cosign.key. Its"
        " password is asked for, or taken from $COSIGN_PASSWORD.",
        rich_help_panel=_options.WORK,
        show_default=False,
    ),
]
Keyless = Annotated[
    bool,
    typer.Option(
        "--keyless",
        help="Let the cosign program sign with the identity that the CI gives its jobs.",
        rich_help_panel=_options.WORK,
    ),
]
SignedTarget = Annotated[
    str | None,
    typer.Option(
        "--target",
        "-t",
        metavar="NAME",
        help="Sign provenance and SBOMs too, made of the lock of this target in the checkout.",
        rich_help_panel=_options.SELECT,
        show_default=False,
    ),
]
SignedLock = Annotated[
    Path | None,
    typer.Option(
        "--lock",
        metavar="FILE",
        help="The same of this lock.json; digests.json lies beside it.",
        rich_help_panel=_options.SELECT,
        show_default=False,
    ),
]


def sign(
    image: Ref,
    key: PrivateFile = None,
    keyless: Keyless = False,
    target: SignedTarget = None,
    lock: SignedLock = None,
    plain_http: _options.PlainHttp = None,
    matrix: _options.MatrixFile = None,
    json: _options.Json = False,
    quiet: _options.Quiet = False,
    verbose: _options.Verbose = False,
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
    from imgbuild.verify import sign as signing

    _options.configure(json=json, quiet=quiet, verbose=verbose)
    if (key is None) != keyless:
        message = "name a key with --key FILE, or --keyless, and not both"
        raise InputError(message, hint="make a pair with: cosign generate-key-pair")
    private = keys.load_private(key) if key else None
    client, reference = _published.client(image, plain_http, offline=False, origin=True)
    with console.step(f"signing {image}"):
        made = signing.sign(client, reference, private, _published.lock(target, lock, matrix))
    _options.answer(made, [_signed(item) for item in made], json=json)


def _signed(item: Signed) -> str:
    return " ".join([item.digest, *item.statements])
