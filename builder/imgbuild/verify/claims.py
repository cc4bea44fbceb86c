"""Checks signatures, SBOMs, provenance, VEX and tags."""

# A separate module: claims, not content.
from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Sequence

import msgspec

from imgbuild import codec
from imgbuild.attest import in_toto, provenance
from imgbuild.attest.signing.keys import PublicKey
from imgbuild.attest.signing.statements import Statement
from imgbuild.attest.signing.stored import AttachedSignatures
from imgbuild.cves import vex
from imgbuild.plan import tags
from imgbuild.values import Digest, Sha256
from imgbuild.verify.checks import CheckFailed, CheckImpossible, SubjectMissing
from imgbuild.verify.image import ExpectedImage

NO_KEY_DETAIL = (
    "not verified without --key, because anyone with write access to the registry could have "
    "attached it (to verify keyless signatures, run: cosign verify --certificate-identity …)"
)
NONE_DETAIL = "none is attached"


class AttachedStatement(msgspec.Struct, frozen=True, kw_only=True):
    """A statement attached to an image: its place, its bytes, and whether the key signed it."""

    place: str
    payload: bytes
    signed: bool


def check_signature(digest: Digest, beside: AttachedSignatures, key: PublicKey | None) -> str:
    """Check that `key` signed the image `digest`."""
    if beside.damaged:
        raise CheckFailed("; ".join(beside.damaged))
    if key is None:
        raise CheckImpossible(NO_KEY_DETAIL)
    for each in beside.signatures:
        if each.hint == key.hint and not each.by(key):
            message = f"{each.place} refers to the key, but its signature is invalid"
            raise CheckFailed(message)
    signatures = [each for each in beside.signatures if each.kind == in_toto.SIGNATURE]
    ours = [each for each in signatures if each.by(key)]
    if not ours:
        problem = (
            f"none of {len(signatures)} signatures is by the key"
            if signatures
            else "the image is not signed"
        )
        raise CheckFailed(problem)
    right = [each for each in ours if digest in each.digests]
    if not right:
        message = (
            f"{ours[0].place} is signed by the key, but is about another image:"
            f" {ours[0].digests[0]}"
        )
        raise CheckFailed(message)
    return f"signed by the key ({len(right)} signatures)"


def check_tag(tag: str, digest: Digest, expected: ExpectedImage, today: datetime.date) -> str:
    """Check that the image `digest` can have the tag `tag` on the day `today` (UTC).

    Raises CheckFailed for a tag of another image of the target, or with an impossible date, and
    CheckImpossible for other names, which may be custom tags.
    """
    arches = expected.arches(digest)
    if not arches:
        message = f"the image does not match the lock of {expected.target}, so its tags are unknown"
        raise CheckImpossible(message)
    stable = tags.stable_tag(expected.target, arches, expected.documents)
    if tag == stable:
        return f"{tag} is the tag of {expected.target} for {', '.join(arches)}"
    last = today + datetime.timedelta(days=1)  # the clock of the pushing machine may be ahead
    try:
        day = tags.day_of_tag(tag, stable)
    except ValueError as error:
        message = f"{tag} does not end in a date (expected {stable}-YYYYMMDD)"
        raise CheckFailed(message) from error
    if day is None and tags.is_tag_of(tag, expected.target):
        message = f"{tag} is the tag of another image (expected {stable} or {stable}-YYYYMMDD)"
        raise CheckFailed(message)
    if day is None:
        message = (
            f"{tag} is not a tag that imgbuild pushes for {expected.target}; check that this is "
            "the expected target"
        )
        raise CheckImpossible(message)
    if not expected.as_of <= day.isoformat() <= last.isoformat():
        message = f"{tag}: impossible push date (expected {expected.as_of} to {today})"
        raise CheckFailed(message)
    return f"{tag} is the tag of {expected.target} for {', '.join(arches)}, pushed on {day}"


def statements_about(
    plain: Sequence[AttachedStatement],
    beside: AttachedSignatures,
    about: str,
    key: PublicKey | None,
) -> list[AttachedStatement]:
    """Return the statements of type `about` attached to an image, those signed by the key first.

    Statements in `plain` have no signature, and others are in signed envelopes.
    """
    target_digests = [
        AttachedStatement(
            place=each.place, payload=each.payload, signed=key is not None and each.by(key)
        )
        for each in beside.signatures
        if each.kind == about
    ]
    return sorted([*target_digests, *plain], key=lambda statement: not statement.signed)


def predicate_type(statement: AttachedStatement) -> str:
    """Return the predicate type of a statement."""
    return _statement(statement).predicate_type


def signed_statements(
    attached_statements: Sequence[AttachedStatement], key: PublicKey | None
) -> Sequence[AttachedStatement]:
    """Return the statements signed by `key`, or all statements if `key` is None.

    Raises SubjectMissing if there are none.
    """
    if not attached_statements:
        raise SubjectMissing(NONE_DETAIL)
    if key is None:
        return attached_statements
    signed = [statement for statement in attached_statements if statement.signed]
    if not signed:
        message = f"no document is signed by the key, such as {attached_statements[0].place}"
        raise CheckFailed(message)
    return signed


def check_provenances(
    digest: Digest,
    lock: Sha256,
    attached_statements: Sequence[AttachedStatement],
    key: PublicKey | None,
    builder: str | None,
) -> str:
    """Check that statements attest that the image `digest` was built from `lock`."""
    counting = signed_statements(attached_statements, key)
    for statement in attached_statements:
        if digest not in _statement(statement).digests:
            digests = ", ".join(_statement(statement).digests)
            message = f"{statement.place} is about another image: {digests}"
            raise CheckFailed(message)
    faults = [_fault(statement, lock, builder) for statement in counting]
    if all(faults):
        raise CheckFailed(faults[0])
    best = counting[faults.index("")]
    basis = provenance.comparable_fields(best.payload)
    by = basis.builder if basis else ""
    signature = "signed by the key" if best.signed else "signature not checked"
    return f"built from lock {lock[:12]} by {by}; {signature}"


def is_about_image(statement: AttachedStatement, digest: Digest, lock: Sha256) -> bool:
    """Return whether a statement attests that the image `digest` was built from `lock`."""
    return digest in _statement(statement).digests and not _fault(statement, lock, None)


def check_document(
    digest: Digest,
    expected_documents: Sequence[bytes],
    attached: Sequence[tuple[str, bytes]],
    attached_statements: Sequence[AttachedStatement],
    key: PublicKey | None,
) -> str:
    """Check that an attached SBOM and its statement are in `expected_documents`.

    The documents are generated from the lock. There are several if the lock was attached with
    different package records. Other attached SBOMs, for example of an earlier push, are listed in
    the result. Raises CheckImpossible if an SBOM signed by the key differs because another version
    of imgbuild generated it.
    """
    if not attached and not attached_statements:
        raise SubjectMissing(NONE_DETAIL)
    counting = [
        _statement(statement)
        for statement in attached_statements
        if statement.signed or key is None
    ]
    predicates = [each.predicate for each in counting if digest in each.digests]
    if key is not None and len(predicates) < len(counting):
        message = "a statement signed by the key is about another image"
        raise CheckFailed(message)
    signed = predicates if key is not None else []
    other = [
        place
        for place, data in attached
        if data not in expected_documents and _json(data) not in signed
    ]
    if attached and len(other) == len(attached):
        message = f"{other[0]} does not match the lock"
        raise CheckFailed(message)
    stated = any(_json(expected) in predicates for expected in expected_documents)
    right = any(data in expected_documents for _, data in attached)
    more = f"; also attached, but not matching: {', '.join(other)}" if other else ""
    if key is None and (right or stated):
        return f"matches the lock; signature not checked{more}"
    if key is not None and stated:
        return f"matches the lock; signed by the key{more}"
    if signed and not right:
        message = f"signed by the key, but generated by another version of imgbuild{more}"
        raise CheckImpossible(message)
    if right:
        message = "matches the lock, but is not signed by the key"
        raise CheckFailed(message)
    message = f"{attached_statements[0].place} does not match the lock"
    raise CheckFailed(message)


def vex_document(
    digest: Digest,
    attached: Sequence[tuple[str, bytes]],
    attached_statements: Sequence[AttachedStatement],
    key: PublicKey | None,
) -> str:
    """Describe the author, date and statuses of the newest OpenVEX document for an image.

    With a key, only documents signed by this key are used. Raises CheckImpossible if there are
    none, because the documents are optional.
    """
    counting = [statement for statement in attached_statements if statement.signed or key is None]
    documents = [] if key else list(attached)
    for counted in counting:
        if digest not in _statement(counted).digests:
            message = f"{counted.place} is about another image"
            raise CheckFailed(message)
        documents.append((counted.place, codec.encode_compact(_statement(counted).predicate)))
    if not documents:
        message = "no attached document is signed by the key"
        raise CheckImpossible(message)
    read = [vex.decode_vex(data, place) for place, data in documents]
    newest = max(read, key=lambda candidate: candidate.timestamp)
    counts = Counter(entry.status for entry in newest.statements)
    statuses = ", ".join(f"{number} {status}" for status, number in sorted(counts.items()))
    signature = "signed by the key" if key else "signature not checked"
    dated = f"by {newest.author}, {newest.timestamp:%Y-%m-%d}"
    return f"{dated}: {statuses or 'no statements'}; {signature}"


def _json(data: bytes) -> object:
    """Decode `data` as JSON, or return `data` if it is invalid."""
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError:
        return data


def _fault(statement: AttachedStatement, lock: Sha256, builder: str | None) -> str:
    basis = provenance.comparable_fields(statement.payload)
    if basis is None:
        return f"{statement.place} is not a provenance with the build type {provenance.BUILD_TYPE}"
    if basis.lock != lock:
        return f"{statement.place} refers to the lock {basis.lock}; expected {lock}"
    if builder is not None and basis.builder != builder:
        return f"{statement.place} names the builder {basis.builder}; expected {builder}"
    return ""


def _statement(statement: AttachedStatement) -> Statement:
    return codec.decode(
        statement.payload, Statement, file=statement.place, what="in-toto statement"
    )
