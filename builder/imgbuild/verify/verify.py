"""Runs all checks of an image for `imgbuild verify`."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from imgbuild.attest import attachments, in_toto
from imgbuild.attest.sbom import cyclonedx, spdx
from imgbuild.attest.signing import stored
from imgbuild.attest.signing.keys import PublicKey
from imgbuild.attest.signing.stored import AttachedSignatures
from imgbuild.cves import vex
from imgbuild.errors import FetchFailed, NoSolution, ToolMissing, WorkFailed
from imgbuild.oci.image import ImageSource
from imgbuild.registry import artifact_store
from imgbuild.registry.image import InRegistry
from imgbuild.system.reporter import SILENT, Reporter
from imgbuild.values import Arch, Digest
from imgbuild.verify import claims, expected_lock, image
from imgbuild.verify.checks import Checklist, Failed, Lacking, Unchecked, Verified
from imgbuild.verify.claims import AttachedStatement
from imgbuild.verify.expected_lock import ExpectedLock

LAYOUT = "a layout has no signatures; verify the image in a registry"
NO_LOCK = "no lock to compare the image with"

Rebuild = Callable[[ExpectedLock, Sequence[Arch]], str]


class VerifyOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options for a verification. `whole` hashes all layers, and `rebuild` rebuilds them."""

    key: PublicKey | None = None
    own: ExpectedLock | None = None
    builder: str | None = None
    whole: bool = False
    rebuild: Rebuild | None = None

    @property
    def options_by_check(self) -> dict[str, str]:
        """The options that require checks, by name of check."""
        key = "--key" if self.key else ""
        return {
            "signature": key,
            "lock": key,
            "provenance": "--builder-id" if self.builder else key,
            **{kind.title: key for kind in SBOMS},
            "rebuild": "--rebuild" if self.rebuild else "",
        }


class SbomFormat(msgspec.Struct, frozen=True, kw_only=True):
    """An SBOM format: name, media type, and predicate type of statements."""

    name: str
    media_type: str
    predicate_type: str

    @property
    def title(self) -> str:
        """The name of the check for this format."""
        return f"SBOM {self.name}"


SBOMS = (
    SbomFormat(
        name="CycloneDX",
        media_type=cyclonedx.MEDIA_TYPE,
        predicate_type=in_toto.CYCLONEDX,
    ),
    SbomFormat(name="SPDX", media_type=spdx.MEDIA_TYPE, predicate_type=in_toto.SPDX),
)


def verify(place: ImageSource, options: VerifyOptions, reporter: Reporter = SILENT) -> Verified:
    """Check the image at `place`."""
    return Verification(place, options, reporter).run()


class Verification:
    """The checks of an image. Attached documents are read once.

    After `run`, `held` is the lock that the image was compared with, or None.
    """

    def __init__(
        self, place: ImageSource, options: VerifyOptions, reporter: Reporter = SILENT
    ) -> None:
        self.place = place
        self.remote = place if isinstance(place, InRegistry) else None
        self.wanted = options
        self.checklist = Checklist(reporter)
        self.held: ExpectedLock | None = None
        self._statements: list[AttachedStatement] = []
        self._locks = expected_lock.AttachedLocks()
        self._signatures: dict[Digest, AttachedSignatures] = {}

    def run(self) -> Verified:
        """Run all checks."""
        checklist, options_by_check = self.checklist, self.wanted.options_by_check
        checklist.run("signature", self.signature, option=options_by_check["signature"])
        statements = checklist.read("provenance", partial(self.statements, self.place.top.digest))
        self._statements = statements or []
        lock_answer = checklist.read("lock", self.lock, option=options_by_check["lock"])
        if lock_answer is None:
            self._run_without_lock()
        else:
            self.held, text = lock_answer
            self._run_with_lock(self.held, text, has_statements=statements is not None)
        return Verified(
            reference=self.place.name,
            digest=self.place.top.digest,
            target=self.held.contents.target if self.held else "",
            ok=checklist.ok,
            checks=tuple(checklist.checks),
        )

    def _run_with_lock(self, expected: ExpectedLock, text: str, *, has_statements: bool) -> None:
        checklist, options_by_check = self.checklist, self.wanted.options_by_check
        trusted = checklist.run(
            "lock", partial(self.trusted, expected, text), option=options_by_check["lock"]
        )
        if self.remote is not None and self.remote.tag:
            today = datetime.datetime.now(datetime.UTC).date()
            digest = self.place.top.digest
            work = partial(claims.name, self.remote.tag, digest, expected.contents, today)
            checklist.run("name", work)
        image.check(self.place, expected.contents, checklist, whole=self.wanted.whole)
        if has_statements:
            work = partial(self.provenance, expected)
            checklist.run("provenance", work, option=options_by_check["provenance"])
        for arch in expected.contents.arches(self.place.top.digest):
            for kind in SBOMS:
                work = partial(self.sbom, expected, kind, arch)
                checklist.run(kind.title, work, arch, option=options_by_check[kind.title])
            self._vex(expected.contents.manifest(arch), arch)
        again = partial(self.rebuild, expected, trusted=trusted)
        checklist.run("rebuild", again, option=options_by_check["rebuild"])

    def _run_without_lock(self) -> None:
        """Run the checks that need no lock, and record other checks as not done."""
        options_by_check = self.wanted.options_by_check
        self.checklist.run("image", _no_lock)
        if self.wanted.whole:
            image.check_alone(self.place, self.checklist)
        for name in ("provenance", *(kind.title for kind in SBOMS), "rebuild"):
            self.checklist.run(name, _no_lock, option=options_by_check[name])

    def beside(self, digest: Digest) -> AttachedSignatures:
        """The signatures attached to an image. Empty for a layout."""
        if self.remote is None:
            return AttachedSignatures(signatures=(), damaged=())
        if digest not in self._signatures:
            signatures = stored.read(self.remote.client, self.remote.repository, digest)
            self._signatures[digest] = signatures
        return self._signatures[digest]

    def attached(self, digest: Digest, artifact_type: str) -> list[tuple[str, bytes]]:
        """The documents of a type attached to an image, with descriptions of their places."""
        if self.remote is None:
            return []
        matches = artifact_store.find(
            self.remote.client, self.remote.repository, digest, artifact_type
        )
        return [
            (f"{name} of {artifact.descriptor.digest}", part.data)
            for artifact in matches
            for name, part in artifact.files.items()
        ]

    def signature(self) -> str:
        """Check that the key signed the image."""
        if self.remote is None:
            raise Lacking(LAYOUT)
        digest = self.place.top.digest
        return claims.signature(digest, self.beside(digest), self.wanted.key)

    def lock(self) -> tuple[ExpectedLock, str]:
        """Select the lock to compare the image with, and describe the result of the check."""
        if self.remote is not None:
            digest = self.place.top.digest
            self._locks = expected_lock.attached_locks(
                self.remote.client, self.remote.repository, digest
            )
        return expected_lock.choose(self.wanted.own, self._locks, self.is_trusted)

    def _attached_versions(self, expected: ExpectedLock) -> list[ExpectedLock]:
        """The attached copies of the lock, or only the lock if it is not attached.

        The package records in the bundle can change without a change of the image.
        """
        if self.wanted.own is not None:
            return [expected]
        return [candidate for candidate in self._locks.right if candidate.sha256 == expected.sha256]

    def statements(self, digest: Digest) -> list[AttachedStatement]:
        """All provenance statements attached to an image."""
        plain = [
            AttachedStatement(place=name, payload=data, signed=False)
            for name, data in self.attached(digest, in_toto.PAYLOAD_TYPE)
        ]
        statements = claims.statements(
            plain, self.beside(digest), in_toto.PROVENANCE, self.wanted.key
        )
        return [
            statement
            for statement in statements
            if statement.signed or claims.kind(statement) == in_toto.PROVENANCE
        ]

    def _vex(self, digest: Digest, arch: Arch) -> None:
        """Check the OpenVEX documents of a manifest, if it has any."""
        read = partial(self.attached, digest, vex.MEDIA_TYPE)
        attached = self.checklist.read("VEX", read, arch)
        statements = claims.statements((), self.beside(digest), in_toto.OPENVEX, self.wanted.key)
        if attached or (attached is not None and statements):
            work = partial(claims.vex_document, digest, attached, statements, self.wanted.key)
            self.checklist.run("VEX", work, arch)

    def is_trusted(self, expected: ExpectedLock) -> bool:
        """Whether a provenance that is signed by the key lists a lock."""
        digest = self.place.top.digest
        return any(
            statement.signed and claims.names(statement, digest, expected.sha256)
            for statement in self._statements
        )

    def trusted(self, expected: ExpectedLock, text: str) -> str:
        """Check that the lock is from the user, or listed in a provenance signed by the key."""
        if self.wanted.own is not None:
            return text
        if self.wanted.key is None:
            return f"{text}; its origin was not checked"
        if not self.is_trusted(expected):
            message = f"no provenance signed by the key lists {expected.place}"
            raise Failed(message)
        return f"{text}; listed in a provenance signed by the key"

    def provenance(self, expected: ExpectedLock) -> str:
        """Check that a provenance attests that the image was built from the lock."""
        if self.remote is None:
            raise Lacking(LAYOUT)
        options = self.wanted
        digest = self.place.top.digest
        return claims.provenances(
            digest, expected.sha256, self._statements, options.key, options.builder
        )

    def sbom(self, expected: ExpectedLock, kind: SbomFormat, arch: Arch) -> str:
        """Check that the SBOMs in a format for an architecture match the lock."""
        if self.remote is None:
            raise Lacking(LAYOUT)
        digest = expected.contents.manifest(arch)
        expected_documents = [
            part.data
            for candidate in self._attached_versions(expected)
            for part in attachments.sboms(candidate.lock_bundle, arch)[kind.media_type].values()
        ]
        attached = self.attached(digest, kind.media_type)
        statements = claims.statements(
            (), self.beside(digest), kind.predicate_type, self.wanted.key
        )
        return claims.document(digest, expected_documents, attached, statements, self.wanted.key)

    def rebuild(self, expected: ExpectedLock, *, trusted: bool) -> str:
        """Check that rebuilding the lock yields the image.

        A rejected lock is not built, because a build runs code of the packages.
        """
        if self.wanted.rebuild is None:
            message = "--rebuild rebuilds every layer from the lock and compares digests"
            raise Unchecked(message)
        arches = expected.contents.arches(self.place.top.digest)
        if not arches:
            message = "not built, because the image does not match this lock"
            raise Lacking(message)
        if not trusted:
            message = "not built, because the check of the lock's origin failed"
            raise Lacking(message)
        try:
            return self.wanted.rebuild(expected, arches)
        except (FetchFailed, ToolMissing, WorkFailed, NoSolution) as error:
            message = f"not built: {error.message}" + (f" ({error.hint})" if error.hint else "")
            raise Lacking(message) from error


def _no_lock() -> str:
    raise Lacking(NO_LOCK)
