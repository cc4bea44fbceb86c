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
from imgbuild.registry.image import RegistrySource
from imgbuild.system.reporter import SILENT_REPORTER, Reporter
from imgbuild.values import Arch, Digest
from imgbuild.verify import claims, expected_lock, image
from imgbuild.verify.checks import (
    CheckFailed,
    CheckImpossible,
    Checklist,
    SubjectMissing,
    VerifiedImage,
)
from imgbuild.verify.claims import AttachedStatement
from imgbuild.verify.expected_lock import ExpectedLock

LAYOUT = "a layout cannot have signatures; verify the image in a registry"
NO_LOCK_DETAIL = "no lock to compare the image with"

RebuildFunction = Callable[[ExpectedLock, Sequence[Arch]], str]


class VerifyOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a verification. `whole` hashes all layers, and `rebuild` rebuilds them."""

    key: PublicKey | None = None
    own: ExpectedLock | None = None
    builder: str | None = None
    whole: bool = False
    rebuild: RebuildFunction | None = None

    @property
    def options_by_check(self) -> dict[str, str]:
        """The options that require checks, by check name."""
        key = "--key" if self.key else ""
        return {
            "signature": key,
            "lock": key,
            "provenance": "--builder-id" if self.builder else key,
            **{kind.check_name: key for kind in SBOMS},
            "rebuild": "--rebuild" if self.rebuild else "",
        }


class SbomFormat(msgspec.Struct, frozen=True, kw_only=True):
    """An SBOM format: its name, its media type, and the predicate type of its statements."""

    name: str
    media_type: str
    predicate_type: str

    @property
    def check_name(self) -> str:
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


def verify_image(
    place: ImageSource, options: VerifyOptions, reporter: Reporter = SILENT_REPORTER
) -> VerifiedImage:
    """Check the image at `place`."""
    return Verification(place, options, reporter).run()


class Verification:
    """The checks of an image, which read each attached document only once.

    After `run`, `held` is the lock that the image was compared with, or None.
    """

    def __init__(
        self, place: ImageSource, options: VerifyOptions, reporter: Reporter = SILENT_REPORTER
    ) -> None:
        self.place = place
        self.remote = place if isinstance(place, RegistrySource) else None
        self.wanted = options
        self.checklist = Checklist(reporter)
        self.held: ExpectedLock | None = None
        self._statements: list[AttachedStatement] = []
        self._locks = expected_lock.AttachedLocks()
        self._signatures: dict[Digest, AttachedSignatures] = {}

    def run(self) -> VerifiedImage:
        """Run all checks."""
        checklist, options_by_check = self.checklist, self.wanted.options_by_check
        checklist.run("signature", self.check_signature, option=options_by_check["signature"])
        statements = checklist.read("provenance", partial(self.statements, self.place.top.digest))
        self._statements = statements or []
        lock_answer = checklist.read("lock", self.lock, option=options_by_check["lock"])
        if lock_answer is None:
            self._run_without_lock()
        else:
            self.held, text = lock_answer
            self._run_with_lock(self.held, text, has_statements=statements is not None)
        return VerifiedImage(
            reference=self.place.name,
            digest=self.place.top.digest,
            target=self.held.contents.target if self.held else "",
            ok=checklist.ok,
            checks=tuple(checklist.checks),
        )

    def _run_with_lock(self, expected: ExpectedLock, text: str, *, has_statements: bool) -> None:
        checklist, options_by_check = self.checklist, self.wanted.options_by_check
        trusted = checklist.run(
            "lock", partial(self.check_lock_trust, expected, text), option=options_by_check["lock"]
        )
        if self.remote is not None and self.remote.tag:
            today = datetime.datetime.now(datetime.UTC).date()
            digest = self.place.top.digest
            work = partial(claims.check_tag, self.remote.tag, digest, expected.contents, today)
            checklist.run("name", work)
        image.check_image(self.place, expected.contents, checklist, whole=self.wanted.whole)
        if has_statements:
            work = partial(self.check_provenance, expected)
            checklist.run("provenance", work, option=options_by_check["provenance"])
        for arch in expected.contents.arches(self.place.top.digest):
            for kind in SBOMS:
                work = partial(self.check_sbom, expected, kind, arch)
                checklist.run(kind.check_name, work, arch, option=options_by_check[kind.check_name])
            self._vex(expected.contents.manifest_digest(arch), arch)
        again = partial(self.check_rebuild, expected, trusted=trusted)
        checklist.run("rebuild", again, option=options_by_check["rebuild"])

    def _run_without_lock(self) -> None:
        options_by_check = self.wanted.options_by_check
        self.checklist.run("image", _refuse_without_lock)
        if self.wanted.whole:
            image.check_alone(self.place, self.checklist)
        for name in ("provenance", *(kind.check_name for kind in SBOMS), "rebuild"):
            self.checklist.run(name, _refuse_without_lock, option=options_by_check[name])

    def attached_signatures(self, digest: Digest) -> AttachedSignatures:
        """Return the signatures attached to an image. A layout has none."""
        if self.remote is None:
            return AttachedSignatures(signatures=(), damaged=())
        if digest not in self._signatures:
            signatures = stored.read_signatures(self.remote.client, self.remote.repository, digest)
            self._signatures[digest] = signatures
        return self._signatures[digest]

    def attached_documents(self, digest: Digest, artifact_type: str) -> list[tuple[str, bytes]]:
        """Return the attached documents of a type, with descriptions of their places."""
        if self.remote is None:
            return []
        matches = artifact_store.find_artifacts(
            self.remote.client, self.remote.repository, digest, artifact_type
        )
        return [
            (f"{name} of {artifact.descriptor.digest}", part.data)
            for artifact in matches
            for name, part in artifact.files.items()
        ]

    def check_signature(self) -> str:
        """Check that the key signed the image."""
        if self.remote is None:
            raise SubjectMissing(LAYOUT)
        digest = self.place.top.digest
        return claims.check_signature(digest, self.attached_signatures(digest), self.wanted.key)

    def lock(self) -> tuple[ExpectedLock, str]:
        """Select the lock with which to compare the image, and describe the result of the check."""
        if self.remote is not None:
            digest = self.place.top.digest
            self._locks = expected_lock.attached_locks(
                self.remote.client, self.remote.repository, digest
            )
        return expected_lock.choose_lock(self.wanted.own, self._locks, self.is_trusted)

    def _attached_versions(self, expected: ExpectedLock) -> list[ExpectedLock]:
        """Return the attached copies of the lock, or only the lock if it is not attached.

        The package records in a bundle can change although the image does not.
        """
        if self.wanted.own is not None:
            return [expected]
        return [candidate for candidate in self._locks.right if candidate.sha256 == expected.sha256]

    def statements(self, digest: Digest) -> list[AttachedStatement]:
        """Return all provenance statements attached to an image."""
        plain = [
            AttachedStatement(place=name, payload=data, signed=False)
            for name, data in self.attached_documents(digest, in_toto.PAYLOAD_TYPE)
        ]
        statements = claims.statements_about(
            plain, self.attached_signatures(digest), in_toto.PROVENANCE, self.wanted.key
        )
        return [
            statement
            for statement in statements
            if statement.signed or claims.predicate_type(statement) == in_toto.PROVENANCE
        ]

    def _vex(self, digest: Digest, arch: Arch) -> None:
        read = partial(self.attached_documents, digest, vex.MEDIA_TYPE)
        attached = self.checklist.read("VEX", read, arch)
        statements = claims.statements_about(
            (), self.attached_signatures(digest), in_toto.OPENVEX, self.wanted.key
        )
        if attached or (attached is not None and statements):
            work = partial(claims.vex_document, digest, attached, statements, self.wanted.key)
            self.checklist.run("VEX", work, arch)

    def is_trusted(self, expected: ExpectedLock) -> bool:
        """Return whether a provenance signed by the key lists the lock `expected`."""
        digest = self.place.top.digest
        return any(
            statement.signed and claims.is_about_image(statement, digest, expected.sha256)
            for statement in self._statements
        )

    def check_lock_trust(self, expected: ExpectedLock, text: str) -> str:
        """Check that the user specified the lock or that a signed provenance lists it."""
        if self.wanted.own is not None:
            return text
        if self.wanted.key is None:
            return f"{text}; its origin was not checked"
        if not self.is_trusted(expected):
            message = f"no provenance signed by the key lists {expected.place}"
            raise CheckFailed(message)
        return f"{text}; listed in a provenance signed by the key"

    def check_provenance(self, expected: ExpectedLock) -> str:
        """Check that a provenance attests that the image was built from the lock."""
        if self.remote is None:
            raise SubjectMissing(LAYOUT)
        options = self.wanted
        digest = self.place.top.digest
        return claims.check_provenances(
            digest, expected.sha256, self._statements, options.key, options.builder
        )

    def check_sbom(self, expected: ExpectedLock, kind: SbomFormat, arch: Arch) -> str:
        """Check that the SBOMs in the format `kind` for `arch` match the lock."""
        if self.remote is None:
            raise SubjectMissing(LAYOUT)
        digest = expected.contents.manifest_digest(arch)
        expected_documents = [
            part.data
            for candidate in self._attached_versions(expected)
            for part in attachments.sbom_files(candidate.lock_bundle, arch)[
                kind.media_type
            ].values()
        ]
        attached = self.attached_documents(digest, kind.media_type)
        statements = claims.statements_about(
            (), self.attached_signatures(digest), kind.predicate_type, self.wanted.key
        )
        return claims.check_document(
            digest, expected_documents, attached, statements, self.wanted.key
        )

    def check_rebuild(self, expected: ExpectedLock, *, trusted: bool) -> str:
        """Check that rebuilding the lock results in the same image.

        A rejected lock is not built, because a build runs code from packages.
        """
        if self.wanted.rebuild is None:
            message = "--rebuild rebuilds every layer from the lock and compares digests"
            raise CheckImpossible(message)
        arches = expected.contents.arches(self.place.top.digest)
        if not arches:
            message = "not built, because the image does not match this lock"
            raise SubjectMissing(message)
        if not trusted:
            message = "not built, because the check of the lock's origin failed"
            raise SubjectMissing(message)
        try:
            return self.wanted.rebuild(expected, arches)
        except (FetchFailed, ToolMissing, WorkFailed, NoSolution) as error:
            message = f"not built: {error.message}" + (f" ({error.hint})" if error.hint else "")
            raise SubjectMissing(message) from error


def _refuse_without_lock() -> str:
    raise SubjectMissing(NO_LOCK_DETAIL)
