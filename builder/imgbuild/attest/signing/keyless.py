"""Signs images without a key by running cosign with the identity of the CI job.

Bundles contain a certificate instead of a key. Only cosign contacts the services that issue and log
certificates.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from imgbuild import codec
from imgbuild.attest import in_toto
from imgbuild.attest.signing.signer import SignedSubject
from imgbuild.attest.signing.statements import Statement
from imgbuild.registry.image_reference import Repository
from imgbuild.system import process
from imgbuild.values import Digest

TYPES = {
    in_toto.PROVENANCE: "slsaprovenance1",
    in_toto.CYCLONEDX: "cyclonedx",
    in_toto.SPDX: "spdxjson",
    in_toto.OPENVEX: "openvex",
}
FORM = "--new-bundle-format"  # the default of cosign 3
REMEDY = "install cosign 2.6 or newer, or sign with --sign-key FILE"


def sign_with_cosign(
    repository: Repository, digest: Digest, payloads: Sequence[bytes] = ()
) -> SignedSubject:
    """Sign the image `digest` and the statements `payloads` about it with cosign.

    Raises ToolMissing if cosign is not installed, and WorkFailed if signing fails, for example
    without an identity.
    """
    kinds = []
    program = process.find_program("cosign", remedy=REMEDY)
    name = f"{repository}@{digest}"
    process.run_command([program, "sign", "--yes", FORM, name])
    with tempfile.TemporaryDirectory(prefix="imgbuild-sign-") as folder:
        for number, each in enumerate(payloads):
            statement = codec.decode(each, Statement, file="a statement to sign")
            predicate = Path(folder) / f"{number}.json"
            predicate.write_bytes(codec.encode_compact(statement.predicate))
            kinds.append(statement.predicate_type)
            kind = TYPES.get(statement.predicate_type, statement.predicate_type)
            options = ["--type", kind, "--predicate", str(predicate)]
            process.run_command([program, "attest", "--yes", FORM, *options, name])
    return SignedSubject(digest=digest, statements=tuple(kinds), bundles=())
