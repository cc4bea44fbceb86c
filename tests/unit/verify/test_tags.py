"""Tests that `verify` accepts the tags that `push` assigns to an image."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from imgbuild.plan import tags
from imgbuild.values import Arch
from imgbuild.verify import claims, image
from imgbuild.verify.checks import CheckFailed, CheckImpossible
from imgbuild.verify.image import ExpectedImage
from tests.support import registry_project
from tests.support.rows import each_row

TODAY = datetime.date(2026, 11, 26)
DIGEST = {arch: f"sha256:{number * 64}" for arch, number in zip(Arch, "12", strict=True)}
BOTH_DIGEST = f"sha256:{'3' * 64}"


class WithoutDocuments(ExpectedImage, frozen=True, kw_only=True):
    """The expected contents of an image, with digests that do not require documents."""

    def manifest_digest(self, arch: Arch) -> str:
        return DIGEST[arch]


def expected(*arches: Arch) -> ExpectedImage:
    """The lock of the target "small" on `arches`."""
    documents: Any = dict.fromkeys(arches)
    digest = BOTH_DIGEST if len(arches) > 1 else DIGEST[arches[0]]
    return WithoutDocuments(
        target="small", as_of="2025-06-20", digest=digest, documents=documents, layers={}
    )


def name(tag: str, digest: str = DIGEST[Arch.X86_64], *arches: Arch) -> str:
    return claims.check_tag(tag, digest, expected(*(arches or (Arch.X86_64,))), TODAY)


@each_row("tag", ["small", "small-20250620", "small-20261126", "small-20261127", "small-20260228"])
def test_pushed_tag_is_accepted(tag):
    assert name(tag).startswith(f"{tag} is the tag of small for x86_64")


@pytest.mark.parametrize("arch", Arch)
def test_tag_of_an_image_for_one_architecture_contains_the_architecture(arch):
    for tag in (f"small-{arch}", f"small-{arch}-20261126"):
        assert str(arch) in name(tag, DIGEST[arch], *Arch)
    other = next(each for each in Arch if each is not arch)
    for tag in ("small", "small-20261126", f"small-{other}", f"small-{other}-20261126"):
        with pytest.raises(CheckFailed, match=f"expected small-{arch}"):
            name(tag, DIGEST[arch], *Arch)


def test_tag_of_a_complete_image_has_no_architecture():
    assert "x86_64, arm64" in name("small-20261126", BOTH_DIGEST, *Arch)
    for tag in ("small-x86_64", "small-arm64-20261126", "small-x86_64-arm64"):
        with pytest.raises(CheckFailed, match="another image"):
            name(tag, BOTH_DIGEST, *Arch)


@each_row(
    "tag",
    [
        "small-19700101", "small-20250619", "small-20261128", "small-20991231", "small-99999999",
        "small-20260230", "small-20261301", "small-20260001", "small-00000000",
    ],
)  # fmt: skip
def test_verification_detects_an_impossible_date_in_a_tag(tag):
    with pytest.raises(CheckFailed, match="date"):
        name(tag)


@each_row(
    "tag",
    ["small-arm64", "small-x86_64", "small-base", "small-base-20261126", "small-arm64-20261126"],
)
def test_verification_detects_a_tag_of_another_image(tag):
    with pytest.raises(CheckFailed, match="another image"):
        name(tag)


@each_row(
    "tag",
    [
        "smaller", "Small", "small-2026112", "small-202611260", "small-20261126-1", "small-latest",
        "xsmall-20261126", "small-2026112\u0666",
        "small-20261126\n", "small--20261126", "prod",
    ],
)  # fmt: skip
def test_tags_with_other_names_are_not_verified(tag):
    with pytest.raises(CheckImpossible, match="not a tag that imgbuild pushes"):
        name(tag)


def test_tags_of_an_image_with_another_lock_cannot_be_verified():
    with pytest.raises(CheckImpossible, match="does not match the lock"):
        name("small", f"sha256:{'9' * 64}")


def test_verify_accepts_only_tags_that_push_sets(tmp_path, monkeypatch):
    """The tags of each push plan are accepted for its digest, and rejected for other digests."""
    for place in registry_project.place(tmp_path, monkeypatch):
        plans = [place.plan(), place.both(), *(place.both(arch) for arch in Arch)]
        for plan in plans:
            lock = image.expected_image(plan.lock, plan.target_digests)
            for tag in plan.tags:
                assert claims.check_tag(tag, plan.top.digest, lock, TODAY).startswith(f"{tag} is")
                for other in plans:
                    if other is not plan and other.target == plan.target:
                        with pytest.raises(CheckFailed):
                            claims.check_tag(tag, other.top.digest, lock, TODAY)


def test_tag_has_target_image_part_architecture_and_date():
    assert tags.stable_tag("t", list(Arch), list(Arch), base=True) == "t-base"
    assert tags.stable_tag("t", (Arch.ARM64,), list(Arch), base=True) == "t-base-arm64"
    assert tags.dated_tag("t", TODAY) == "t-20261126"
    assert tags.day_of_tag("t-20261126", "t") == TODAY
