"""Implements `imgbuild sign`, which signs an image in a registry."""

from __future__ import annotations

from typing import Annotated

from imgbuild.attest.signing import keys
from imgbuild.attest.signing.signer import SignedSubject
from imgbuild.cli import _published
from imgbuild.cli._help import create_command
from imgbuild.cli._options import LOCK, TARGET, Keyless, PlainHttp, Reference, SignKey
from imgbuild.cli._output import fold_lines, print_result
from imgbuild.cli._targets import MatrixFile
from imgbuild.cli._verb import create_verb
from imgbuild.errors import InputError
from imgbuild.system.console import console
from imgbuild.verify.sign import sign_verified as sign_image


@create_verb
def sign(
    image: Reference,
    sign_key: SignKey = None,
    keyless: Keyless = False,
    target: Annotated[
        list[str] | None,
        TARGET("Create the provenance and the SBOMs from the lock of this target, and sign them."),
    ] = None,
    lock: Annotated[
        str | None,
        LOCK(
            "A lock.json file with digests.json in the same folder. Use this option instead "
            "of --target if the lock is not in a project."
        ),
    ] = None,
    plain_http: PlainHttp = None,
    matrix: MatrixFile = None,
) -> None:
    """Sign an image in a registry, and its provenance and SBOMs.

    The image is verified first, and not signed if it does not match its lock (exit status 9).
    Provenance and SBOMs are created from your lock (--target or --lock), and not from documents
    attached to the image. Without a lock, only the digest is signed. For an image with several
    architectures, the index and all manifests are signed. The signatures can be verified with
    cosign 3. Signing again with the same key changes nothing.

    Examples:

        imgbuild sign registry.example/rl:cu124-vllm --target cu124-vllm --sign-key cosign.key

        imgbuild sign registry.example/rl:cu124-vllm --target cu124-vllm --keyless
    """
    if (sign_key is None) != keyless:
        message = "specify either --sign-key FILE or --keyless"
        raise InputError(message, hint="to create a key pair, run: cosign generate-key-pair")
    private = keys.load_private(sign_key) if sign_key else None
    client, reference = _published.open_registry_client(
        image, plain_http, offline=False, origin=True
    )
    local_lock = _published.find_expected_lock(target, lock, matrix)
    with console.step(f"signing {image}"):
        signatures = sign_image(client, reference, private, local_lock)
    print_result(signatures, fold_lines(map(_signed_line, signatures)))


def _signed_line(item: SignedSubject) -> str:
    return " ".join([item.digest, *item.statements])


COMMAND = create_command(sign)
