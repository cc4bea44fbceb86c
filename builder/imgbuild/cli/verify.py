"""Implements `imgbuild verify`, which verifies signatures, lock and contents of an image."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from imgbuild.attest.signing import keys
from imgbuild.cli import _options, _published
from imgbuild.cli._help import create_command
from imgbuild.cli._options import KEY, LOCK, TARGET, Jobs, Offline, PlainHttp
from imgbuild.cli._output import align_columns, print_result
from imgbuild.cli._targets import MatrixFile
from imgbuild.cli._verb import create_verb, option
from imgbuild.errors import InputError, IntegrityError
from imgbuild.oci import layout
from imgbuild.oci.image import ImageSource
from imgbuild.registry.image import RegistrySource
from imgbuild.system.console import console
from imgbuild.verify import rebuilt
from imgbuild.verify.checks import CheckOutcome, VerifiedImage
from imgbuild.verify.verify import VerifyOptions
from imgbuild.verify.verify import verify_image as check

HEAD = ("check", "arch", "outcome", "details")

Image = Annotated[
    str,
    typer.Argument(
        metavar="REF|LAYOUT", help="An image in a registry, or the folder of an OCI layout."
    ),
]


@create_verb
def verify(
    image: Image,
    key: Annotated[Path | None, KEY("Without this option, signatures are not verified.")] = None,
    target: Annotated[
        list[str] | None,
        TARGET("Compare the image with its lock. Default: the lock attached to the image."),
    ] = None,
    lock: Annotated[
        str | None,
        LOCK(
            "A lock.json file with digests.json in the same folder. Use this option instead "
            "of --target if the lock is not in a project."
        ),
    ] = None,
    builder_id: Annotated[
        str | None,
        option(
            "--builder-id",
            "Fail if the provenance has another builder ID. Requires --key.",
            metavar="ID",
        ),
    ] = None,
    blobs: Annotated[
        bool, option("--blobs", "Download and hash every layer instead of checking only its size.")
    ] = False,
    rebuild: Annotated[
        bool,
        option("--rebuild", "Build every layer from the lock and compare the digests.", often=True),
    ] = False,
    plain_http: PlainHttp = None,
    jobs: Jobs = 0,
    offline: Offline = False,
    matrix: MatrixFile = None,
) -> None:
    """Verify the signatures, the lock and the contents of an image.

    Only the image is required, because the lock is attached to it. Prints one line per check:
    passed, failed, or not checked (with the reason). Exits with status 9 if a check failed, if a
    check requested by an option is not possible, or if no check passed. Without --key, --target and
    --lock, --rebuild uses the attached lock, which anyone with write access to the registry could
    replace.

    Examples:

        imgbuild verify registry.example/rl:cu124-vllm --key cosign.pub

        imgbuild verify registry.example/rl:cu124-vllm --key cosign.pub --rebuild

        imgbuild verify build/cu124-vllm --target cu124-vllm --blobs
    """
    if builder_id is not None and key is None:
        message = (
            "--builder-id requires --key, because the builder is not authenticated without a"
            " signature"
        )
        raise InputError(message, hint="add a trusted public key with --key FILE")
    again = partial(
        rebuilt.rebuild_and_compare, processes=_options.process_count(jobs), offline=offline
    )
    options = VerifyOptions(
        key=keys.load_public(key) if key else None,
        own=_published.find_expected_lock(target, lock, matrix),
        builder=builder_id,
        whole=blobs,
        rebuild=again if rebuild else None,
    )
    with console.step(f"verifying {image}"):
        verified = check(_place(image, plain_http, offline=offline), options)
    print_result(verified, _table(verified))
    _raise_if_failed(verified)
    if not verified.ok:
        raise typer.Exit(IntegrityError.exit_code)


def _place(image: str, plain_http: list[str] | None, *, offline: bool) -> ImageSource:
    if Path(image).is_dir():
        return layout.layout_source(Path(image))
    return RegistrySource(*_published.open_registry_client(image, plain_http, offline=offline))


def _table(verified: VerifiedImage) -> list[str]:
    rows = [
        HEAD,
        *((entry.name, entry.arch or "", entry.outcome, entry.detail) for entry in verified.checks),
    ]
    return align_columns(rows)


def _raise_if_failed(verified: VerifiedImage) -> None:
    order = (CheckOutcome.FAILED, CheckOutcome.PASSED, CheckOutcome.UNCHECKED)
    count = {outcome: sum(each.outcome is outcome for each in verified.checks) for outcome in order}
    counts = ", ".join(f"{number} {outcome}" for outcome, number in count.items() if number)
    if verified.ok:
        console.info(f"{verified.reference} is {verified.digest}: {counts}")
    elif not count[CheckOutcome.FAILED]:
        console.error(
            f"{verified.reference} could not be checked: {counts}",
            hint="specify a lock with --target or --lock, or a public key with --key",
        )
    else:
        console.error(f"{verified.reference} failed verification: {counts}")


COMMAND = create_command(verify)
