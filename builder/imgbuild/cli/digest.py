"""Implements `imgbuild digest`, which prints the digest of an image."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from imgbuild.cli._help import create_command
from imgbuild.cli._output import fold_lines, print_result
from imgbuild.cli._targets import SelectionOptions
from imgbuild.cli._verb import create_verb
from imgbuild.plan import image_digests
from imgbuild.plan.image_digests import TargetDigests
from imgbuild.values import Arch, Digest


class PrintedDigests(msgspec.Struct, frozen=True, kw_only=True):
    """The digest of a target's image, and the digest of the manifest for each architecture."""

    target: str
    digest: Digest
    arch: dict[Arch, Digest]


@create_verb
def digest(selection: SelectionOptions) -> None:
    """Compute the digest of an image from its lock.

    For one architecture, prints the digest of the manifest. For several architectures, prints the
    digest of the index. Only lock.json and digests.json are read.

    Example:

        docker pull "registry.example/rl@$(imgbuild digest cu124-vllm)"
    """
    project = selection.project()
    chosen = selection.selected_locks(project)
    answers = [
        _digests(image_digests.read_digests(project.images, item.lock), item.arches)
        for item in chosen
    ]
    is_single = len(answers) == 1
    lines = [item.digest if is_single else f"{item.target} {item.digest}" for item in answers]
    print_result(answers, fold_lines(lines))


def _digests(target_digests: TargetDigests, arches: Sequence[Arch]) -> PrintedDigests:
    every = set(arches) == set(target_digests.arch)
    return PrintedDigests(
        target=target_digests.target,
        digest=target_digests.digest if every else target_digests.arch[arches[0]].manifest,
        arch={each: target_digests.arch[each].manifest for each in arches},
    )


COMMAND = create_command(digest)
