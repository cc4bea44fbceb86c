"""`imgbuild digest`: the digest of an image, from its lock alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from imgbuild.cli import _options
from imgbuild.values import Arch, Digest

if TYPE_CHECKING:
    from imgbuild.plan.seal import Seal


class Digests(msgspec.Struct, frozen=True, kw_only=True):
    """The digests of a target: of the whole, and of the manifest on each architecture."""

    target: str
    digest: Digest
    arch: dict[Arch, Digest]


def digest(
    names: _options.Names = None,
    target: _options.Targets = None,
    everything: _options.Everything = False,
    arch: _options.Arches = None,
    matrix: _options.MatrixFile = None,
    json: _options.Json = False,
    quiet: _options.Quiet = False,
    verbose: _options.Verbose = False,
) -> None:
    """Print the digest of an image from its lock alone: nothing is read but two files.

    One architecture: its manifest's digest. Several: the index's.

    Example:

        docker pull "registry.example/rl@$(imgbuild digest cu124-vllm)"
    """
    from imgbuild import project
    from imgbuild.cli import _selection
    from imgbuild.plan import seal

    _options.configure(json=json, quiet=quiet, verbose=verbose)
    found = project.find(matrix)
    wanted = _options.wanted(names, target)
    chosen = _selection.choose(found, wanted, everything=everything, arches=arch or [])
    answers = [_digests(seal.read_seal(found.images, item.lock), item.arches) for item in chosen]
    one = len(answers) == 1
    lines = [item.digest if one else f"{item.target} {item.digest}" for item in answers]
    _options.answer(answers, lines, json=json)


def _digests(sealed: Seal, arches: Sequence[Arch]) -> Digests:
    every = set(arches) == set(sealed.arch)
    return Digests(
        target=sealed.target,
        digest=sealed.digest if every else sealed.arch[arches[0]].manifest,
        arch={each: sealed.arch[each].manifest for each in arches},
    )
