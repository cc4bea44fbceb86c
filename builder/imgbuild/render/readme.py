"""Renders /opt/imgbuild/README, which describes an image and how to use it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from imgbuild.lock.lock_file import Lock
from imgbuild.lock.locked_matrix import locked_versions
from imgbuild.matrix.model import Target
from imgbuild.matrix.near import FIRST_PINS
from imgbuild.render.templates import render_template
from imgbuild.system.amounts import wrap_paragraph

FILE = "readme.j2"
WIDTH = 100
MODES = {
    "off": "off",
    "jit": "its kernels are compiled at first use",
    "prebuilt": "its kernels are in the image",
}


class ReadmeValue(msgspec.Struct, frozen=True, kw_only=True):
    """The values of the template. `versions` are versions on all architectures."""

    target: str
    summary: str
    python: str
    cuda: str
    versions: dict[str, str]
    main: tuple[str, ...]
    prefix: str
    workdir: str
    cache: str
    flashinfer: str
    flashinfer_reason: str
    notes: tuple[str, ...]


def readme_text(lock: Lock, target: Target, images: Path) -> str:
    """Return the README of the image of `lock`. `target` is the row of the matrix.

    Raises InputError for a template of the project that cannot be rendered.
    """
    versions = locked_versions(lock)
    value = ReadmeValue(
        target=lock.target,
        summary=target.summary,
        python=lock.base.python,
        cuda=lock.cuda,
        versions=versions,
        main=tuple(name for name in (*FIRST_PINS, "transformers") if name in versions),
        prefix=lock.settings.prefix,
        workdir=lock.settings.workdir,
        cache=lock.settings.cache,
        flashinfer=MODES.get(lock.flashinfer, lock.flashinfer),
        flashinfer_reason=" ".join(target.flashinfer.reason.split()),
        notes=tuple(" ".join(note.split()) for note in target.guide),
    )
    return (
        "\n".join(map(_fold_line, render_template(FILE, value, images=images).split("\n"))).strip()
        + "\n"
    )


def _fold_line(line: str) -> str:
    """Fold a line of prose to WIDTH characters. Indented lines do not change."""
    if line.startswith("    ") or len(line) <= WIDTH:
        return line
    indent = "  " if line.startswith("- ") else ""
    return "\n".join(wrap_paragraph(line, WIDTH, "", indent))
