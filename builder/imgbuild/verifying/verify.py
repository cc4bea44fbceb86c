"""Check by check: who signed an image, what it was made of, and whether it is that.

Comes in: where the image lies, a public key and a lock if there are any. Goes out: a `Verified`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from imgbuild import attach, inside
from imgbuild.sbom import cyclonedx, spdx
from imgbuild.signing import kept, statements
from imgbuild.signing.kept import Beside
from imgbuild.signing.keys import PublicKey
from imgbuild.values import Arch, Digest
from imgbuild.verifying import image, known, said
from imgbuild.verifying.checks import Checklist, Failed, Unchecked, Verified
from imgbuild.verifying.known import Known
from imgbuild.verifying.places import InRegistry, Place
from imgbuild.verifying.said import Word

LAYOUT = "a layout holds none; verify the image in a registry"
NO_LOCK = "there is no lock to hold it against"

Rebuild = Callable[[Known, Sequence[Arch]], str]


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What to check with, and how far: `whole` reads all layers, `rebuild` makes them again."""

    key: PublicKey | None = None
    own: Known | None = None
    builder: str | None = None
    whole: bool = False
    rebuild: Rebuild | None = None


class Sbom(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of SBOM: its name, how it is attached, and what a statement of it says it is."""

    name: str
    media_type: str
    predicate_type: str


SBOMS = (
    Sbom(
        name="CycloneDX",
        media_type=cyclonedx.MEDIA_TYPE,
        predicate_type=statements.CYCLONEDX,
    ),
    Sbom(name="SPDX", media_type=spdx.MEDIA_TYPE, predicate_type=statements.SPDX),
)


def verify(place: Place, wanted: Wanted) -> Verified:
    """Check the image at `place`; nothing of it is believed that is not checked."""
    return Verification(place, wanted).run()


class Verification:
    """The checks of one image; what lies beside it is read once.

    After `run`, `held` is the lock that it was held against, None if there was none.
    """

    def __init__(self, place: Place, wanted: Wanted) -> None:
        self.place = place
        self.remote = place if isinstance(place, InRegistry) else None
        self.wanted = wanted
        self.checklist = Checklist()
        self.held: Known | None = None
        self._words: list[Word] = []
        self._beside: dict[Digest, Beside] = {}

    def run(self) -> Verified:
        """Make all checks."""
        checklist = self.checklist
        checklist.run("signature", self.signature)
        words = checklist.read("provenance", partial(self.words, self.place.top.digest))
        self._words = words or []
        found = checklist.read("lock", self.lock)
        if found is None:
            checklist.run("image", _no_lock)
        else:
            self.held, text = found
            self._against(self.held, text, said_of=words is not None)
        return Verified(
            reference=self.place.name,
            digest=self.place.top.digest,
            target=self.held.due.target if self.held else "",
            ok=checklist.ok,
            checks=tuple(checklist.checks),
        )

    def _against(self, held: Known, text: str, *, said_of: bool) -> None:
        checklist, digest = self.checklist, self.place.top.digest
        checklist.run("lock", partial(self.trusted, held, text))
        image.check(self.place, held.due, checklist, whole=self.wanted.whole)
        if said_of:
            checklist.run("provenance", partial(self.provenance, held))
        for arch in held.due.arches(digest):
            for kind in SBOMS:
                checklist.run(f"SBOM {kind.name}", partial(self.sbom, held, kind, arch), arch)
        checklist.run("rebuild", partial(self.rebuild, held))

    def provenances(self) -> list[bytes]:
        """The provenances beside the image that name it and its lock, each once."""
        if self.held is None:
            return []
        digest, lock = self.place.top.digest, self.held.sha256
        found = [word.payload for word in self._words if said.names(word, digest, lock)]
        return list(dict.fromkeys(found))

    def beside(self, digest: Digest) -> Beside:
        """The signatures beside an image; a layout has none."""
        if self.remote is None:
            return Beside(signatures=(), damaged=())
        if digest not in self._beside:
            found = kept.read(self.remote.client, self.remote.repository, digest)
            self._beside[digest] = found
        return self._beside[digest]

    def attached(self, digest: Digest, artifact_type: str) -> list[tuple[str, bytes]]:
        """The documents of a type that are attached to an image, each with its place in words."""
        if self.remote is None:
            return []
        found = attach.find(self.remote.client, self.remote.repository, digest, artifact_type)
        return [
            (f"{name} of {one.descriptor.digest}", part.data)
            for one in found
            for name, part in one.files.items()
        ]

    def signature(self) -> str:
        """Whether the key signed the image."""
        if self.remote is None:
            raise Unchecked(LAYOUT)
        digest = self.place.top.digest
        return said.signature(digest, self.beside(digest), self.wanted.key)

    def lock(self) -> tuple[Known, str]:
        """The lock to hold the image against, and what is to be said of it."""
        found = known.Beside()
        if self.remote is not None:
            digest = self.place.top.digest
            found = known.beside(self.remote.client, self.remote.repository, digest)
        return known.choose(self.wanted.own, found, self.vouched)

    def words(self, digest: Digest) -> list[Word]:
        """Every provenance beside an image."""
        plain = [
            Word(place=name, payload=data, signed=False)
            for name, data in self.attached(digest, statements.PAYLOAD_TYPE)
        ]
        found = said.words(plain, self.beside(digest), statements.PROVENANCE, self.wanted.key)
        return [word for word in found if word.signed or said.kind(word) == statements.PROVENANCE]

    def vouched(self, held: Known) -> bool:
        """Whether a provenance that the key signed names a lock."""
        digest = self.place.top.digest
        return any(word.signed and said.names(word, digest, held.sha256) for word in self._words)

    def trusted(self, held: Known, text: str) -> str:
        """Whether the lock is one's own, or one that the key's owner named."""
        if self.wanted.own is not None:
            return text
        if self.wanted.key is None:
            return f"{text}; whose it is was not checked"
        if not self.vouched(held):
            message = f"no provenance that the key signed names {held.place}"
            raise Failed(message)
        return f"{text}; named by a provenance that the key signed"

    def provenance(self, held: Known) -> str:
        """Whether the image is said to be made of the lock."""
        if self.remote is None:
            raise Unchecked(LAYOUT)
        wanted = self.wanted
        digest = self.place.top.digest
        return said.provenances(digest, held.sha256, self._words, wanted.key, wanted.builder)

    def sbom(self, held: Known, kind: Sbom, arch: Arch) -> str:
        """Whether the SBOMs of one kind and architecture follow from the lock."""
        if self.remote is None:
            raise Unchecked(LAYOUT)
        digest = held.due.manifest(arch)
        (due,) = inside.bills(held.carried, arch)[kind.media_type].values()
        attached = self.attached(digest, kind.media_type)
        words = said.words((), self.beside(digest), kind.predicate_type, self.wanted.key)
        return said.document(digest, due.data, attached, words, self.wanted.key)

    def rebuild(self, held: Known) -> str:
        """Whether the lock, built again, is the image."""
        if self.wanted.rebuild is None:
            message = "--rebuild makes every layer again from the lock and compares"
            raise Unchecked(message)
        arches = held.due.arches(self.place.top.digest)
        if not arches:
            message = "the image is not of this lock"
            raise Unchecked(message)
        return self.wanted.rebuild(held, arches)


def _no_lock() -> str:
    raise Unchecked(NO_LOCK)
