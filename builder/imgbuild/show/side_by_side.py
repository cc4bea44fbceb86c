"""Formats two targets side by side, with versions, requirements, sizes and tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from imgbuild.show.page import PageImage, TargetPage, image_gpus
from imgbuild.show.table import NO_VALUE, short_digest
from imgbuild.smoke.records import other_digests, run_summary
from imgbuild.system.amounts import size_text
from imgbuild.values import Arch

SAME_MARK = "="  # marks a row whose values are equal
# The compared properties of an architecture's images.
_IMAGE: dict[str, Callable[[PageImage], str]] = {
    "digest": lambda image: short_digest(image.digest),
    "to pull": lambda image: size_text(image.size),
    "unpacked": lambda image: size_text(image.unpacked),
    "layers": lambda image: str(image.layers),
    "wheels": lambda image: str(image.wheels),
    "Debian packages": lambda image: str(image.debs),
    "driver, at least": lambda image: image.driver or NO_VALUE,
    "glibc, at least": lambda image: image.glibc or NO_VALUE,
    "GPUs": lambda image: image_gpus(image) or NO_VALUE,
    "tested": lambda image: (
        "; ".join([*map(run_summary, image.runs), *other_digests(image.runs, image.digest)])
        or "no test record"
    ),
}


def comparison_rows(left: TargetPage, right: TargetPage) -> list[tuple[str, str, str, str]]:
    """Return a header, and rows of a mark ("=" for equal values), a label and two values."""
    compared = [*_versions(left, right), *_images(left, right)]
    return [
        ("", "", left.row.target, right.row.target),
        *((SAME_MARK if one == other else "", name, one, other) for name, one, other in compared),
    ]


def _versions(left: TargetPage, right: TargetPage) -> Iterator[tuple[str, str, str]]:
    first, second = left.row, right.row
    yield "summary", first.summary, second.summary
    yield "CUDA", first.cuda, second.cuda
    yield "Python", first.python, second.python
    mine, theirs = ({**page.also, **page.row.versions} for page in (left, right))
    for package in dict.fromkeys((*first.pins, *second.pins, *mine, *theirs)):
        yield package, mine.get(package, NO_VALUE), theirs.get(package, NO_VALUE)
    yield "FlashInfer", first.flashinfer, second.flashinfer
    yield "base", first.base, second.base
    yield "security updates", left.security or NO_VALUE, right.security or NO_VALUE
    yield "as of", first.as_of, second.as_of
    yield "state", first.state, second.state
    yield (
        "architectures",
        ", ".join(sorted(first.arch, reverse=True)),
        ", ".join(sorted(second.arch, reverse=True)),
    )
    yield "recommended", first.recommended or NO_VALUE, second.recommended or NO_VALUE


def _images(left: TargetPage, right: TargetPage) -> Iterator[tuple[str, str, str]]:
    """Yield the images by architecture, x86_64 first. Labels omit a single architecture."""
    sides = [{image.arch: image for image in page.images} for page in (left, right)]
    arches = [arch for arch in (Arch.X86_64, Arch.ARM64) if any(arch in side for side in sides)]
    for arch in arches:
        first, second = (side.get(arch) for side in sides)
        for name, of in _IMAGE.items():
            label = f"{arch} {name}" if len(arches) > 1 else name
            yield label, of(first) if first else NO_VALUE, of(second) if second else NO_VALUE
