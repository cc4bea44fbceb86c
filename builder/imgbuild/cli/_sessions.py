"""Selects targets in a matrix by options, for commands that read the matrix."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from imgbuild.cli._selection import selected_arch
from imgbuild.cli._targets import TargetOptions
from imgbuild.errors import InputError
from imgbuild.matrix.select import Selected
from imgbuild.oci.layout import Layout
from imgbuild.pipeline.session import Session
from imgbuild.values import Arch


def select_targets(
    selection: TargetOptions, session: Session, names: Sequence[str] = ()
) -> list[Selected]:
    """Return the targets that the options or `names` select in the matrix."""
    patterns = [*names, *selection.named_targets]
    return session.select_targets(
        patterns, everything=selection.everything, arches=selection.arches
    )


def refuse_shared_layout(selected: Sequence[Selected], layout: Path | None) -> None:
    """Raise InputError if `layout` is given for several targets."""
    if layout is not None and len(selected) > 1:
        message = f"--layout {layout} contains one image, but {len(selected)} targets are selected"
        raise InputError(message, hint="specify one target, or omit --layout")


def single_arch(layout: Layout, arches: Sequence[Arch] | None) -> Arch:
    """Return the architecture of `layout` to use, chosen as in `selected_arch`."""
    return selected_arch(tuple(layout.images), layout.path, arches)
