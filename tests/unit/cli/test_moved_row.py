"""Tests the text of `imgbuild update` on a moved row, after that of the published targets."""

from __future__ import annotations

import pytest

from imgbuild.cli import _moved_row
from imgbuild.cli._moved_row import MovedRow
from imgbuild.show.image_diff import ArchDiff, HostChange, ImageDiff, PackageChange
from imgbuild.values import Arch

CUDA = HostChange(what="CUDA", before="12.4", after="13.0")
TORCH = PackageChange(kind="wheel", package="torch", before="2.6.0", after="2.11.0")
NUMPY = PackageChange(kind="wheel", package="numpy", before="2.2.6", after="2.3.5")
OWN = PackageChange(kind="wheel", package="wandb", before="0.21.0", after="0.22.0")
OLD_ROW = PackageChange(kind="wheel", package="torch", before="2.5.0", after="2.11.0")
MANY = tuple(
    PackageChange(kind="wheel", package=f"package-{number}", before="1", after="2")
    for number in range(21)
)


def diff(*changes: PackageChange, hosts: tuple[HostChange, ...] = ()) -> ImageDiff:
    part = ArchDiff(changes=changes, layers=("own",), pull=10, total=30, hosts=hosts)
    return ImageDiff(target="trainer", before="trainer", arch={Arch.X86_64: part})


def row_lines(
    changes: tuple[PackageChange, ...], known: ImageDiff | None, *, whole: bool = False
) -> list[str]:
    row = MovedRow(
        target="trainer", before="small", after="large", digest="sha256:0", hosts=(CUDA,),
        required=("wandb", "numpy", "package-3"), diff=diff(*changes),
    )  # fmt: skip
    head, *lines, findings = _moved_row.moved_row_lines(row, known, whole=whole)
    assert (head, findings) == (
        "trainer: small → large",
        "new findings in the project's code: none",
    )
    return lines


PULL = "x86_64: 10 B of 30 B to pull;"
BESIDES = "changed, added or removed besides those of the published targets"


@pytest.mark.parametrize(
    ("changes", "known", "expected"),
    [
        (
            (TORCH, NUMPY, OWN),
            diff(TORCH, NUMPY, hosts=(CUDA,)),
            [f"{PULL} 1 package {BESIDES}", "  wandb 0.21.0 → 0.22.0"],
        ),
        (
            (OLD_ROW,),
            diff(TORCH, NUMPY, hosts=(CUDA,)),
            [
                f"{PULL} 1 package {BESIDES}",
                "  numpy: no change in trainer",
                "  torch 2.5.0 → 2.11.0",
            ],
        ),
        (
            (NUMPY, *MANY),
            diff(NUMPY, *MANY, hosts=(CUDA,)),
            [f"{PULL} 0 packages {BESIDES}", "  package-3 1 → 2"],
        ),
        (
            (NUMPY, *MANY),
            diff(NUMPY, hosts=(CUDA,)),
            [
                f"{PULL} 21 packages {BESIDES}",
                "  package-3 1 → 2",
                "  and 20 others; to list all, add --packages",
            ],
        ),
        (
            (OWN,),
            None,
            [
                "  CUDA: 12.4 → 13.0",
                f"{PULL} 1 package changed, added or removed",
                "  wandb 0.21.0 → 0.22.0",
            ],
        ),
    ],
)
def test_difference_of_the_published_targets_is_not_repeated(
    changes: tuple[PackageChange, ...], known: ImageDiff | None, expected: list[str]
) -> None:
    assert row_lines(changes, known) == expected
